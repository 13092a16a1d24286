"""How far searches go: by default, and at most where commands and runs are asked for outputs of text."""

from __future__ import annotations

EXPANSIONS = 10_000  # prefixes that are expanded for a source, unless another number is given
SPELLED = 2_000  # prefixes that are followed to find the segmentations of a text
MOST = 1_000  # prefixes of a beam, outputs of a line
MOST_EXPANSIONS = 1_000_000
PENALTY = 100  # the largest exponent of a length penalty
LENGTH = 100_000  # symbols of an output that may be asked for
