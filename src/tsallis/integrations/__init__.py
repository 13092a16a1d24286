"""Sparse probability in other libraries' models, a folder or file a library; each needs an extra of its own."""
