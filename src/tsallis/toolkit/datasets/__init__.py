"""Known data sets: where their files lie, and how they are fetched and unpacked."""

from tsallis.toolkit.datasets.registry import SOURCES, get
from tsallis.toolkit.datasets.source import Source

__all__ = ["SOURCES", "Source", "get"]
