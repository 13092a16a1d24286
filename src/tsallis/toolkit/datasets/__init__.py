"""Known data sets: the addresses of their files, and functions that download and unpack them."""
