"""The numbers of the symbols that every vocabulary has and no text spells."""

from __future__ import annotations

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # padding, start, end and unknown
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
FIRST = len(SPECIALS)  # the number of a vocabulary's first symbol of its own
IGNORE_INDEX = -100  # in the place of a target that has no loss, as in PyTorch
