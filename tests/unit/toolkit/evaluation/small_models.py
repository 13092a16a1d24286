"""Small models for verb inflection, and their data."""

from __future__ import annotations

import torch

from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.symbols import EOS
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.tasks.strings import encode_examples, english_verbs

EXAMPLES = english_verbs()["dev"][:12]
SRC = Vocabulary.build(e.src_tokens() for e in EXAMPLES)
TGT = Vocabulary.build(e.tgt_tokens() for e in EXAMPLES)
CORPUS = encode_examples(EXAMPLES, SRC, TGT)


def model(output: str = "entmax", spread: float = 3.0) -> RNNSeq2Seq:
    torch.manual_seed(2)
    result = RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, dropout=0.5, output=output)
    with torch.no_grad():  # the larger scores differ enough for sparse supports
        result.output.projection.weight.mul_(10 * spread)
        result.attention.bilinear.weight.mul_(100)
        result.output.projection.bias[EOS] += 0.5
    return result


def transformer() -> TransformerSeq2Seq:
    torch.manual_seed(3)
    return TransformerSeq2Seq(len(SRC), len(TGT), d_model=8, heads=2, layers=2, d_ff=8, dropout=0.5, norm="pre")
