"""Tests of compiled LSTM and GRU decoders against the same models with PyTorch's operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tsallis
from compiled_models import SEARCHES, independent_steps, same_best_symbols, same_step, same_whole_search, sources
from instruction_sets import PRESENT, use
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.compiled import CompiledState
from tsallis.models.protocol import join
from tsallis.ops import cpu
from tsallis.ops.cpu import decoding
from tsallis.search import Ensemble, beam_search
from tsallis.search.temperature import with_temperature

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

MODELS: list[dict[str, Any]] = [
    {"attention": "softmax", "output": "softmax"},
    {"attention": "entmax", "output": "entmax", "scorer": "additive", "d_embedding": 5},
    {"attention": "sparsemax", "output": "sparsemax", "cell": "gru"},
    {"cell": "gru", "scorer": "additive", "layers": 1, "d_model": 20, "input_feeding": False},
    {
        "layers": 3,
        "d_model": 34,
        "input_feeding": False,
        "initial_state": "zeros",
        "attention_alpha": 1.3,
        "output_alpha": 1.2,
    },
    {"attention": "sparsemax", "output": "alpha_relu", "tau": 0.6, "layers": 1, "d_model": 6, "d_embedding": 9},
    {"attention": "softmax", "output": "alpha_relu", "tau": -0.1, "cell": "gru", "share": "target"},
    {"output": "sparsemax", "scorer": "additive", "attention": "softmax", "d_model": 2, "layers": 1},
    # With these sizes, the kernels store rows with gaps between them.
    {"d_model": 256, "layers": 1, "scorer": "additive", "attention": "sparsemax"},
]


class Plain(RNNSeq2Seq):
    """A model that compiled code does not support, so that its steps are PyTorch's."""


class PlainTransformer(TransformerSeq2Seq):
    """The same for a Transformer: it is not compiled."""


def make(symbols: int = 45, **options: Any) -> RNNSeq2Seq:
    torch.manual_seed(0)
    model = RNNSeq2Seq(20, symbols, **{"d_model": 24, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2).add_(torch.randn_like(parameter), alpha=0.1)
        model.output.projection.weight.mul_(4)
    return model


def plain(model: Any) -> Any:
    """Return a copy of a model, or of the models of an ensemble, with PyTorch's steps."""
    model = copy.deepcopy(model)
    for part in model.modules():
        part.__class__ = {RNNSeq2Seq: Plain, TransformerSeq2Seq: PlainTransformer}.get(type(part), type(part))
    return model


def start(model: RNNSeq2Seq, compiled: bool = True) -> Any:
    memory = model.encode(*sources())
    state = model.start(memory) if compiled else model._start_plain(memory)
    assert isinstance(state, CompiledState) == compiled
    return state


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the called decoding kernels."""
    calls: list[str] = []
    call = decoding.call_kernel
    monkeypatch.setattr(decoding, "call_kernel", lambda name, arguments: calls.append(name) or call(name, arguments))
    return calls


def same_search(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one call runs a whole search, with the outputs and certificates of PyTorch's steps."""
    calls = recorded_calls(monkeypatch)
    reference = plain(model)
    for options in SEARCHES:
        ours = beam_search(model, *sources(), **options)
        assert set(calls) == {"search"}
        calls.clear()
        theirs = beam_search(reference, *sources(), **options)
        assert not calls
        for one, other in zip(ours, theirs, strict=True):
            ours_by_tokens, theirs_by_tokens = ({h.tokens: h for h in x.hypotheses} for x in (one, other))
            assert ours_by_tokens.keys() == theirs_by_tokens.keys()
            assert one.certificate.kind == other.certificate.kind
            assert one.certificate.bound == pytest.approx(other.certificate.bound, rel=1e-4, abs=1e-4)
            for tokens, hypothesis in ours_by_tokens.items():
                expected = theirs_by_tokens[tokens]
                assert hypothesis.log_prob == pytest.approx(expected.log_prob, rel=1e-4, abs=1e-4)
                assert (hypothesis.support, hypothesis.num_attended) == (expected.support, expected.num_attended)
                if "keep_attention" in options:
                    torch.testing.assert_close(hypothesis.attention, expected.attention, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("options", MODELS, ids=str)
@torch.no_grad()
def test_steps_match_plain_decoder(name: str, options: dict[str, Any]) -> None:
    with use(name):
        model = make(**options)
        states = start(model), start(model, compiled=False)
        states = same_step(model, states, torch.ones(6, dtype=torch.long))
        for token, index in ((4, [0, 0, 2, 3, 3, 3, 5]), (9, [6, 1, 1, 0]), (7, [3])):
            states = tuple(state.select(torch.tensor(index)) for state in states)
            states = same_step(model, states, torch.arange(len(index)) + token)
        assert len(states[0].caches) == 1  # earlier caches are dropped


@torch.no_grad()
def test_joined_states_match_plain_decoder() -> None:
    for options in MODELS[1:4]:
        model = make(**options)
        both = []
        for compiled in (True, False):
            first = model.step(start(model, compiled), torch.full((6,), 5)).state
            second = model.step(first.select(torch.tensor([1, 4])), torch.tensor([6, 7])).state
            both.append(join([second, first.select(torch.tensor([0, 1])), second.select(torch.tensor([1]))]))
        states = same_step(model, (both[0], both[1]), torch.tensor([8, 9, 10, 11, 12]))
        same_step(model, tuple(state.select(torch.tensor([4, 2])) for state in states), torch.tensor([13, 14]))


@torch.no_grad()
def test_states_can_be_reused_and_rows_are_independent() -> None:
    for options in MODELS[:4]:
        model = make(**options)
        independent_steps(model, model.step(start(model), torch.full((6,), 5)).state)


@torch.no_grad()
def test_best_symbols_match_scores() -> None:
    for options in (MODELS[0], MODELS[1], MODELS[6]):
        model = make(**options)
        same_best_symbols(model, start(model))


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("options", MODELS, ids=str)
def test_single_call_search_matches_stepwise_search(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with use(name):
        same_whole_search(make(**options), monkeypatch)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_search_matches_plain_steps(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    same_search(make(**options), monkeypatch)


def transformer(**options: Any) -> TransformerSeq2Seq:
    torch.manual_seed(1)
    return TransformerSeq2Seq(20, 45, d_model=32, heads=2, layers=2, d_ff=40, **options).eval()


ENSEMBLES: list[Any] = [
    lambda: [make(**MODELS[0]), make(**MODELS[2])],
    lambda: [make(**MODELS[1]), make(**MODELS[5]), make(**MODELS[3])],
    lambda: [transformer(), make(**MODELS[2])],
    lambda: [make(**MODELS[4]), transformer(output="softmax"), transformer()],
]


@pytest.mark.parametrize("models", ENSEMBLES)
def test_ensemble_search_matches_plain_steps(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble = Ensemble(models())
    same_search(ensemble, monkeypatch)


def test_invalid_ensemble_searches_raise() -> None:
    with pytest.raises(ValueError, match=r"vocabularies of the same size, got \[45, 46\]"):
        beam_search(Ensemble([make(), make(46)]), *sources())
    with pytest.raises(ValueError, match="symbols of a prefix must be from 0 to 44, got 45"):
        beam_search(Ensemble([make(), make()]), *sources(), prefixes=[(45,)] * 6)
    broken = make()
    with torch.no_grad():
        broken.output.projection.weight[:, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN for source 0"):
        beam_search(Ensemble([make(), broken]), *sources())


class Weighted(Ensemble):
    """A subclass that could override the steps."""


PLAIN_ENSEMBLES = [
    lambda: Ensemble([make(), plain(make(cell="gru"))]),
    lambda: Ensemble([make(), with_temperature(make(), 0.5)]),
    lambda: Ensemble([make(), Ensemble([make()])]),
    lambda: Weighted([make(), make()]),
]


@pytest.mark.parametrize("model", PLAIN_ENSEMBLES)
def test_unsupported_ensembles_use_plain_steps(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded_calls(monkeypatch)
    beam_search(model(), *sources())
    assert "search" not in calls


def test_too_large_scores_give_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(**MODELS[0])
    with torch.no_grad():
        model.output.projection.bias.add_(1e9)
    for searched in (model, Ensemble([make(), model])):
        ours, theirs = (beam_search(x, *sources(), max_length=3) for x in (searched, plain(searched)))
        assert [x.certificate.kind for x in ours] == [x.certificate.kind for x in theirs]
        assert {x.certificate.kind for x in ours} == {"none"}


@torch.no_grad()
def test_changed_weights_take_effect() -> None:
    model = make(**MODELS[1])
    before = model.step(start(model), torch.full((6,), 5)).scores
    for change in (
        lambda: model.decoder.weight_hh_l1.mul_(1.5),
        lambda: setattr(model.attention, "alpha", 1.9),
        lambda: model.attention.score.weight.mul_(1.5),
        lambda: model.load_state_dict({k: v * 1.01 for k, v in model.state_dict().items()}),
    ):
        change()
        same_step(model, (start(model), start(model, compiled=False)), torch.full((6,), 5))
        now = model.step(start(model), torch.full((6,), 5)).scores
        assert not torch.equal(now, before)
        before = now


PLAIN_MODELS = [
    lambda model: model.attention.register_forward_hook(lambda *_: None),
    lambda model: model.double(),
    lambda model: model.train(),
    lambda model: setattr(model.attention, "alpha", 2.5),
    lambda model: setattr(model.output, "alpha", 2.5),
    lambda model: setattr(model, "__class__", Plain),
    lambda model: setattr(model, "combine", nn.Sequential(model.combine)),
]


@pytest.mark.parametrize("change", PLAIN_MODELS)
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_unsupported_models_use_plain_steps(change: Any, packed: bool) -> None:
    model = make(**MODELS[1])
    if packed:
        start(model)
    change(model)
    assert not isinstance(model.start(model.encode(*sources())), CompiledState)


PLAIN_OPTIONS = [
    {"copy": [-1] * 4 + list(range(4, 20))},
    {"features": [4, 5]},
    {"density": "gaussian"},
    {"monotonic": 1, "input_feeding": False},
]


@pytest.mark.parametrize("options", PLAIN_OPTIONS, ids=str)
@torch.no_grad()
def test_unsupported_options_use_plain_steps(options: dict[str, Any]) -> None:
    model = make(**options)
    assert not isinstance(model.start(model.encode(*sources())), CompiledState)
    assert len(beam_search(model, *sources(), max_length=3)) == 6


def test_gradients_and_eager_backend_use_plain_steps() -> None:
    model = make()
    with torch.no_grad(), tsallis.backend("eager"):
        assert not isinstance(model.start(model.encode(*sources())), CompiledState)
    assert not isinstance(model.start(model.encode(*sources())), CompiledState)
    memory = model.encode(*sources())
    with torch.no_grad():
        assert isinstance(model.start(memory), CompiledState)


@torch.no_grad()
def test_out_of_range_tokens_raise() -> None:
    model = make()
    for token in (45, -1):
        with pytest.raises(IndexError, match=f"from 0 to 44, got {token}"):
            model.step(start(model), torch.full((6,), token))
    with pytest.raises(ValueError, match="symbols of a prefix must be from 0 to 44, got 45"):
        beam_search(model, *sources(), prefixes=[(45,)] * 6)


def test_nan_weights_raise() -> None:
    for cell in ("lstm", "gru"):
        model = make(cell=cell)
        with torch.no_grad():
            model.decoder.weight_hh_l0[0, 0] = torch.nan
        with pytest.raises(ValueError, match="NaN for source 0"):
            beam_search(model, *sources())


@torch.no_grad()
def test_threads_do_not_change_a_step() -> None:
    model = make(2000, **MODELS[1])
    state, token = start(model), torch.arange(4, 10)
    alone = model.step(state, token)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(model.step(state, token).scores, alone.scores)
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def test_memory_with_other_masks_uses_plain_steps() -> None:
    model = make(**MODELS[1])
    memory = model.encode(*sources())
    assert isinstance(model.start(memory), CompiledState)
    memory.mask[2] = False  # a source without symbols
    same_step(model, (model.start(memory), model._start_plain(memory)), torch.ones(6, dtype=torch.long))
    memory.mask[2, 1:3] = True  # padding before the symbols
    state = model.start(memory)
    assert not isinstance(state, CompiledState)


@torch.no_grad()
def test_symbols_without_an_embedding_raise() -> None:
    model = make(**MODELS[0])
    model.tgt_embedding = nn.Embedding(6, model.tgt_embedding.embedding_dim).eval()
    with pytest.raises(IndexError):
        beam_search(model, *sources())


def test_training_uses_the_code_of_a_replaced_module() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 3 * super().forward(x)

    model = make(**MODELS[0])
    model.combine = Scaled(model.combine.in_features, model.combine.out_features, bias=False).eval()
    src, lengths = sources()
    decoded = model(src, lengths, torch.ones(6, 1, dtype=torch.long))
    step = model.step(model.start(model.encode(src, lengths)), torch.ones(6, dtype=torch.long))
    torch.testing.assert_close(model.output.scores(decoded.hidden[:, 0]), step.scores)
