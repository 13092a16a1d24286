"""Turn the results of an analysis into one HTML page; :func:`show` makes one from any model in one call."""

from tsallis.report.page import build_page
from tsallis.report.recording import show

__all__ = ["build_page", "show"]
