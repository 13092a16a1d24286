"""A tiny model and data for these tests, the same in every process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from run_seed import SEED
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.batch import Batch
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.tasks.strings import encode_examples, english_verbs
from tsallis.toolkit.training import Settings

EXAMPLES = english_verbs()["train"][:51]
VOCAB = Vocabulary.build([*(e.src_tokens() for e in EXAMPLES), *(e.tgt_tokens() for e in EXAMPLES)])
TRAIN = encode_examples(EXAMPLES[:36], VOCAB, VOCAB)
DEV = encode_examples(EXAMPLES[36:], VOCAB, VOCAB)
# Nine batches give three updates with up to four batches. The last update has one, so the second process has none.
SETTINGS = Settings(epochs=4, batch_size=4, accumulate=2, learning_rate=0.01, checkpoint_every=2, seed=SEED, keep=2)
KINDS: dict[str, Any] = {"rnn": {"layers": 1}, "transformer": {"share": "all"}, "tied alphas": {"tie_alphas": "kind"}}


def model(kind: str = "transformer", dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(SEED)
    options = {"dropout": dropout, "d_model": 8, **KINDS[kind]}
    if kind == "rnn":
        return RNNSeq2Seq(len(VOCAB), len(VOCAB), **options).double()
    options = {"heads": 2, "layers": 2, "d_ff": 12, "attention": "learned", **options}
    return TransformerSeq2Seq(len(VOCAB), len(VOCAB), **options).double()


def windows() -> list[list[Batch]]:
    """Return the batches of five updates, in different sizes and numbers."""
    counts = (4, 4, 3, 4, 1)
    batches = iter([TRAIN.batch([2 * i, 2 * i + 1][: 1 + i % 2]) for i in range(sum(counts))])
    return [[next(batches) for _ in range(count)] for count in counts]


def arguments() -> Any:
    """Load the request of the test that started this process."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """Copy nested dictionaries with detached tensors that later changes of the model do not affect."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value.detach().clone() if isinstance(value, Tensor) else value
