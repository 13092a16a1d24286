"""The options of a search, of `tsallis.inference`, by the name that other commands import."""

from tsallis.inference.options import SearchOptions as SearchOptions
