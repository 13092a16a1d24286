"""Synthetic examples as batches of a training: the examples of the streams, others in every epoch."""

from __future__ import annotations

import pytest
import torch

from tsallis.symbols import BOS, FIRST, IGNORE_INDEX, PAD
from tsallis.toolkit.datasets.synthetic import SYNTHETIC_TASKS, SyntheticStream
from tsallis.toolkit.datasets.synthetic_corpus import synthetic_corpus, synthetic_vocabulary

every_task = pytest.mark.parametrize("name", SYNTHETIC_TASKS)


@every_task
def test_rows_are_the_examples_of_the_streams(name: str) -> None:
    corpus = synthetic_corpus(name, 3, [(16, 24), (40, 40)], seed=5)
    for part, (least, most) in enumerate([(16, 24), (40, 40)]):
        stream = SyntheticStream(name, least, most, 5)
        for epoch in range(2):
            batch = corpus.batch([3 * part + row for row in range(3)], epoch)
            for row in range(3):
                tokens, targets = map(torch.tensor, stream.example(3 * epoch + row))
                count = len(tokens)
                assert batch.tgt_in[row, 0] == BOS and (batch.tgt_in[row, count + 1 :] == PAD).all()
                assert torch.equal(batch.tgt_in[row, 1 : count + 1] - FIRST, tokens)
                own = batch.tgt_out[row, 1 : count + 1]
                assert torch.equal(torch.where(own == IGNORE_INDEX, IGNORE_INDEX, own - FIRST), targets)
                assert batch.tgt_out[row, 0] == IGNORE_INDEX and (batch.tgt_out[row, count + 1 :] == IGNORE_INDEX).all()
                assert count <= corpus.lengths()[3 * part + row, 1]
                assert batch.tgt_in[row].max() < len(synthetic_vocabulary(name))


def test_a_digest_tells_examples_apart() -> None:
    corpora = [("copy", 3, [(16, 24)]), ("sort", 3, [(16, 24)]), ("copy", 4, [(16, 24)]), ("copy", 3, [(16, 25)])]
    digests = {synthetic_corpus(*corpus).digest() for corpus in corpora}
    assert len(digests | {synthetic_corpus("copy", 3, [(16, 24)], seed=1).digest()}) == 5


def test_long_examples_are_read_few_at_a_time() -> None:
    assert max(len(batch.index) for batch in synthetic_corpus("copy", 50, [(16, 4096)]).batches(64)) == 16
