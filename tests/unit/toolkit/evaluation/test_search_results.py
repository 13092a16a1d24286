"""Searches over a corpus, compared with searches of single rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.tables import trie
from tsallis.models.protocol import device_of
from tsallis.search import Ensemble, SearchOptions, beam_search
from tsallis.symbols import EOS
from tsallis.toolkit.evaluation.search_results import search_batches, search_corpus
from unit.toolkit.evaluation.small_models import CORPUS, model


def test_results_come_in_the_order_of_the_corpus() -> None:
    net = model().eval()
    results = search_corpus(net, CORPUS, SearchOptions(beam_size=3), batch_size=5)
    assert len(results) == len(CORPUS)
    for i, result in enumerate(results):
        batch = CORPUS.batch([i])
        (alone,) = beam_search(net, batch.src, batch.src_lengths, beam_size=3)
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in alone.hypotheses]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"mode": "sample"}, "mode must be beam, exact or all .* got sample"), ({"prefix": "a"}, "prefix can't be used")],
)
def test_unsupported_options_for_a_corpus_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        search_corpus(model(), CORPUS, SearchOptions(**options))


def test_device_of_returns_the_device_of_the_parameters() -> None:
    assert device_of(model()) == device_of(Ensemble([model()])) == torch.device("cpu")
    elsewhere = model().to("meta")
    assert device_of(elsewhere) == device_of(Ensemble([Ensemble([elsewhere])])) == torch.device("meta")
    assert device_of(trie({(): {EOS: 1.0}})) == torch.device("cpu")


def test_results_of_batch_parts_match_those_of_the_corpus() -> None:
    net = model().eval()
    batches = CORPUS.batches(5)
    result = [search_batches(net, batches[rank::2], SearchOptions(beam_size=2)) for rank in range(2)]
    expected = search_corpus(net, CORPUS, SearchOptions(beam_size=2), batch_size=5)
    assert {**result[0], **result[1]} == dict(enumerate(expected))
