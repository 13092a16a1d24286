"""Runs that take and give text: what the commands do with lines, with their options, defaults and results.

Importing it is cheap: commands that only show their help load no torch.
"""

from tsallis.toolkit.inference.answers import Answer, Output, TextScore
from tsallis.toolkit.inference.continuations import Continuation, Continuations
from tsallis.toolkit.inference.run import TextRun, open_run
from tsallis.toolkit.inference.suggestions import Suggestion, Suggestions

__all__ = [
    "Answer",
    "Continuation",
    "Continuations",
    "Output",
    "Suggestion",
    "Suggestions",
    "TextRun",
    "TextScore",
    "open_run",
]
