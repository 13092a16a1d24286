"""Text interface of runs: functions that work like commands, with the same options, defaults and results.

The package does not import torch before a run is opened, so commands show their help quickly.
"""

from tsallis.toolkit.inference.answers import Answer, Output, TextScore
from tsallis.toolkit.inference.continuations import Continuation, Continuations
from tsallis.toolkit.inference.proofs import Proof
from tsallis.toolkit.inference.run import TextRun, open_run
from tsallis.toolkit.inference.suggestions import Suggestion, Suggestions

__all__ = [
    "Answer",
    "Continuation",
    "Continuations",
    "Output",
    "Proof",
    "Suggestion",
    "Suggestions",
    "TextRun",
    "TextScore",
    "open_run",
]
