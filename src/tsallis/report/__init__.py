"""Build the HTML page of a report from summaries, or from any PyTorch model in one call of :func:`show`."""

from tsallis.report.page import build_page
from tsallis.report.recording import show

__all__ = ["build_page", "show"]
