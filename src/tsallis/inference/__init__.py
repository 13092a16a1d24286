"""Runs that take and give text: lines are translated and scored, with the options and results of the commands.

Importing it is cheap: commands that only show their help load no torch.
"""

from tsallis.inference.answers import Answer, Output, TextScore
from tsallis.inference.run import TextRun, open_run

__all__ = ["Answer", "Output", "TextRun", "TextScore", "open_run"]
