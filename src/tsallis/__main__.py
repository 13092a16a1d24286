"""`python -m tsallis` is the command `tsallis`."""

from tsallis.toolkit.cli import main

main()
