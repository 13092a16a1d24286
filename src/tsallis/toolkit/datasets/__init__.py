"""Known data sets: the addresses of their files, and functions that download and unpack them."""

from tsallis.toolkit.datasets.registry import SOURCES, get
from tsallis.toolkit.datasets.source import Source

__all__ = ["SOURCES", "Source", "get"]
