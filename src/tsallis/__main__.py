"""`python -m tsallis` is the command `tsallis`."""

from tsallis.cli import main

main()
