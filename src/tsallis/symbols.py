"""Define the indices of the special symbols of every vocabulary."""

from __future__ import annotations

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # padding, start, end and unknown
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
FIRST = len(SPECIALS)  # index of the first symbol after the special ones
IGNORE_INDEX = -100  # target value without a loss, as in PyTorch
