"""Tests of the compiled Transformer against the same model computed by its modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tsallis
from compiled_models import independent_steps, same_best_symbols, same_step, same_whole_search, sources
from instruction_sets import PRESENT, use
from tsallis.models import TransformerSeq2Seq
from tsallis.models.compiled import CompiledState
from tsallis.models.protocol import Memory, join
from tsallis.models.transformer.compiled import CompiledMemory
from tsallis.ops import cpu
from tsallis.search import beam_search

pytestmark = pytest.mark.skipif(not cpu.status().available, reason=f"needs kernel: {cpu.status().reason}")

SMALL: dict[str, Any] = {"d_model": 32, "heads": 2, "layers": 2, "d_ff": 40}
MODELS: list[dict[str, Any]] = [
    {"norm": "pre", "attention": "softmax", "output": "softmax"},
    {"norm": "post", "attention": "softmax", "output": "entmax"},
    {"norm": "pre", "attention": "entmax", "output": "entmax", "output_alpha": 1.3},
    {"norm": "post", "attention": "learned", "output": "sparsemax"},
    {"norm": "pre", "attention": "sparsemax", "cross_attention": "learned", "output": "alpha_relu", "tau": -0.1},
    {"norm": "pre", "attention": "entmax", "attention_alpha": 1.2, "share": "target", "d_model": 48, "heads": 3},
    {"norm": "post", "attention": "learned", "tie_alphas": "global", "layers": 1, "d_ff": 7, "heads": 1},
    # With these sizes, the kernels store rows with gaps between them.
    {"norm": "pre", "attention": "entmax", "output": "entmax", "layers": 1, "d_model": 256, "d_ff": 256, "heads": 4},
]


def make(**options: Any) -> TransformerSeq2Seq:
    torch.manual_seed(0)
    model = TransformerSeq2Seq(20, 45, **{**SMALL, **options}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5).add_(torch.randn_like(parameter), alpha=0.05)
    return model


def start(model: TransformerSeq2Seq, compiled: bool = True) -> Any:
    memory = model.encode(*sources())
    assert isinstance(memory, CompiledMemory)
    state = model.start(memory) if compiled else model._start_plain(memory)
    assert isinstance(state, CompiledState) == compiled
    return state


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


@pytest.mark.parametrize("name", PRESENT)
@pytest.mark.parametrize("options", MODELS, ids=str)
@torch.no_grad()
def test_encoded_sources_match_plain_encoder(name: str, options: dict[str, Any]) -> None:
    with use(name):
        model = make(**options)
        src, lengths = sources(19)
        memory = model.encode(src, lengths)
        plain = model._encode(src, lengths)
        torch.testing.assert_close(memory.states[memory.mask], plain[memory.mask], atol=2e-5, rtol=2e-5)
        assert not memory.states[~memory.mask].any()
        assert memory.mask.sum(1).tolist() == lengths.tolist()
        for i in range(3):
            alone = model.encode(src[i : i + 1, : lengths[i]], lengths[i : i + 1]).states[0]
            assert torch.equal(alone, memory.states[i, : lengths[i]])


@torch.no_grad()
def test_joined_states_of_different_lengths_match_plain() -> None:
    model = make(**MODELS[2])
    both = []
    for compiled in (True, False):
        first = model.step(start(model, compiled), torch.full((6,), 5)).state
        second = model.step(first.select(torch.tensor([1, 4])), torch.tensor([6, 7])).state
        both.append(join([second, first.select(torch.tensor([0, 1])), second.select(torch.tensor([1]))]))
    states = same_step(model, (both[0], both[1]), torch.tensor([8, 9, 10, 11, 12]))
    same_step(model, tuple(state.select(torch.tensor([4, 2])) for state in states), torch.tensor([13, 14]))


@torch.no_grad()
def test_states_can_be_reused_and_rows_are_independent() -> None:
    for options in (MODELS[0], MODELS[3]):
        model = make(**options)
        independent_steps(model, model.step(start(model), torch.full((6,), 5)).state)


@pytest.mark.parametrize("name", PRESENT)
@torch.no_grad()
def test_few_rows_of_wide_products_are_independent(name: str) -> None:
    """Check products with up to three rows, which use wider column blocks; the last block is incomplete here."""
    model = TransformerSeq2Seq(20, 300, **{**SMALL, "d_ff": 200}).eval()
    with use(name):
        states, token = (start(model), start(model, compiled=False)), torch.arange(4, 10)
        same_step(model, states, token)
        whole = model.step(states[0], token).scores
        for rows in range(1, 5):
            index = torch.arange(rows)
            assert torch.equal(model.step(states[0].select(index), token[:rows]).scores, whole[:rows])


@torch.no_grad()
def test_best_symbols_match_scores() -> None:
    for options in MODELS[:5]:
        model = make(**options)
        same_best_symbols(model, start(model))


def test_neither_threads_nor_the_default_dtype_change_a_search() -> None:
    model, (src, lengths) = make(**MODELS[3]), sources(19)
    alone = beam_search(model, src, lengths)
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    try:
        assert beam_search(model, src, lengths) == alone
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


@pytest.mark.parametrize(
    ("name", "options"),
    [(PRESENT[-1], options) for options in MODELS] + [(name, MODELS[i]) for name in PRESENT[:-1] for i in (0, 3, 4)],
    ids=str,
)
def test_single_call_search_matches_stepwise_search(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that hypotheses, bounds, certificates, supports and attention are equal bit for bit."""
    with use(name):
        same_whole_search(make(**options), monkeypatch)


@torch.no_grad()
def test_changed_weights_take_effect() -> None:
    model = make(**MODELS[3])
    before = model.step(start(model), torch.full((6,), 5)).scores
    for change in (
        lambda: model.output.projection.bias.add_(1),
        lambda: model.decoder.layers[0].multihead_attn.alpha.bias.add_(0.5),
        lambda: model.load_state_dict({k: v * 1.01 for k, v in model.state_dict().items()}),
        lambda: setattr(model.decoder.layers[1], "linear1", copy.deepcopy(model.decoder.layers[0].linear1)),
    ):
        change()
        states = start(model), start(model, compiled=False)
        after = same_step(model, states, torch.full((6,), 5))[0]
        assert isinstance(after, CompiledState)
        now = model.step(start(model), torch.full((6,), 5)).scores
        assert not torch.equal(now, before)
        before = now


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("compiled", [True, False])
def test_optimizer_updates_take_effect(optimizer: Any, fused: bool, compiled: bool) -> None:
    """Check fused optimizers in particular: they change parameters without increasing version counters."""
    model = make(**MODELS[2])
    updates = optimizer(model.parameters(), lr=0.05, fused=fused)
    token, (src, lengths) = torch.full((6,), 5), sources()
    decode = torch.compile(model, backend="eager") if compiled else model
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            before = model.step(start(model), token).scores
        model.train(compiled)  # a traced forward pass does not show that gradients are computed
        decode(src, lengths, src).hidden[..., 0].mean().backward()
        updates.step()
        updates.zero_grad()
        model.eval()
        with torch.no_grad():
            same_step(model, (start(model), start(model, compiled=False)), token)
            assert not torch.equal(model.step(start(model), token).scores, before)


class Other(TransformerSeq2Seq):
    """A subclass that could override the steps."""


def other_linear(model: TransformerSeq2Seq) -> None:
    class Adapted(nn.Linear):
        pass

    model.decoder.layers[0].linear1 = Adapted(32, 40).eval()


def fewer_hidden_units(model: TransformerSeq2Seq) -> None:
    layer = model.decoder.layers[1]
    layer.linear1, layer.linear2 = nn.Linear(32, 16).eval(), nn.Linear(16, 32).eval()


def more_heads(model: TransformerSeq2Seq) -> None:
    model.decoder.layers[1].self_attn = tsallis.nn.MultiheadAttention(32, 4, alpha=1.0, batch_first=True).eval()


UNSUPPORTED = [
    other_linear,
    fewer_hidden_units,
    more_heads,
    lambda model: model.decoder.layers[0].multihead_attn.register_forward_hook(lambda *_: None),
    lambda model: setattr(model, "tgt_embedding", nn.Embedding(6, 32).eval()),
    lambda model: setattr(model.decoder.layers[0].self_attn, "alpha", 2.5),
    lambda model: setattr(model.decoder.layers[0].norm1, "eps", 1e-3),
    lambda model: model.double(),
    lambda model: model.train(),
    lambda model: setattr(model.decoder.layers[0], "activation", torch.nn.functional.gelu),
    lambda model: setattr(model, "__class__", Other),
    lambda model: setattr(model.decoder.layers[0].self_attn, "alpha", nn.Identity()),
]


@pytest.mark.parametrize("change", UNSUPPORTED)
@pytest.mark.parametrize("packed", [False, True])
@torch.no_grad()
def test_unsupported_models_use_plain_steps(change: Any, packed: bool) -> None:
    model = make(**MODELS[0])
    if packed:
        assert isinstance(model.start(model.encode(*sources())), CompiledState)
    change(model)
    assert not isinstance(model.start(model.encode(*sources())), CompiledState)


def test_other_sizes_gradients_and_eager_use_plain_steps() -> None:
    with torch.no_grad():
        small = make(d_model=24)
        assert not isinstance(small.start(small.encode(*sources())), CompiledState)
        model = make()
        with tsallis.backend("eager"):
            assert not isinstance(model.start(model.encode(*sources())), CompiledState)
    assert not isinstance(model.start(model.encode(*sources())), CompiledState)


@torch.no_grad()
def test_out_of_range_tokens_raise() -> None:
    model = make()
    for token in (45, -1):
        with pytest.raises(IndexError, match=f"from 0 to 44, got {token}"):
            model.step(start(model), torch.full((6,), token))
    src, lengths = sources()
    with pytest.raises(IndexError, match="from 0 to 19, got 29"):
        model.encode(src + 10, lengths)
    with pytest.raises(ValueError, match="symbols of a prefix must be from 0 to 44, got 45"):
        beam_search(model, *sources(), prefixes=[(45,)] * 6)


def test_nan_weights_raise() -> None:
    model = make()
    with torch.no_grad():
        model.decoder.layers[0].linear1.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN for source 0"):
        beam_search(model, *sources())


@torch.no_grad()
def test_encoder_layers_of_other_sizes_use_plain_steps() -> None:
    encoder = make(**MODELS[0])
    encoder.encoder.layers[1] = make(**MODELS[0], heads=4).encoder.layers[1]
    assert not isinstance(encoder.encode(*sources()), CompiledMemory)


@torch.no_grad()
def test_memory_needs_padding_at_the_end() -> None:
    model, states, mask = make(**MODELS[1]), torch.randn(3, 5, 32), torch.ones(3, 5, dtype=torch.bool)
    mask[1, 2:] = mask[2] = False  # the last source has no symbols
    same_step(
        model, (model.start(Memory(states, mask)), model._start_plain(Memory(states, mask))), torch.ones(3).long()
    )
    mask[0, 0] = False
    with pytest.raises(ValueError, match="must be True up to the last symbol and False after it, but row 0 differs"):
        model.start(Memory(states, mask))
