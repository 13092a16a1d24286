"""Tests of Transformer layers: equal to PyTorch's at alpha 1, usable in its stacks, and decoding step by step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.nn import KeyValueCache, MultiheadAttention, PerHeadAlpha, TransformerDecoderLayer, TransformerEncoderLayer

BATCH, SOURCE, TARGET, MODEL = 3, 5, 4, 8
SIZES = {"d_model": MODEL, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "dtype": torch.float64}
VARIANTS: list[dict[str, Any]] = [
    {"batch_first": True},
    {"norm_first": True},
    {"activation": "gelu", "bias": False},
    {"activation": torch.tanh, "norm_first": True, "batch_first": True, "layer_norm_eps": 0.1},
    {"activation": "relu", "norm_first": True, "bias": False, "batch_first": True},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(v))
KINDS = {
    "encoder": (TransformerEncoderLayer, nn.TransformerEncoderLayer),
    "decoder": (TransformerDecoderLayer, nn.TransformerDecoderLayer),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
ALPHAS = [1.0, 1.5, 2.0, "learned"]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)
mixed_masks = pytest.mark.filterwarnings("ignore:Support for mismatched")  # PyTorch's warning

PADDING = torch.arange(SOURCE) >= torch.tensor([[SOURCE], [2], [4]])
AHEAD = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)
HIDDEN = torch.zeros(TARGET, SOURCE).index_fill_(1, torch.tensor([1]), -torch.inf).double()
MASKS: dict[str, list[dict[str, Any]]] = {
    "encoder": [
        {},
        {"src_key_padding_mask": PADDING},
        {"src_mask": torch.ones(SOURCE, SOURCE, dtype=torch.bool).triu(1), "is_causal": True},
        {"src_mask": torch.linspace(-1, 1, SOURCE**2).view(SOURCE, SOURCE).double(), "src_key_padding_mask": PADDING},
    ],
    "decoder": [
        {},
        {"tgt_mask": AHEAD, "tgt_is_causal": True, "memory_key_padding_mask": PADDING},
        {"memory_mask": HIDDEN, "tgt_key_padding_mask": PADDING[:, :TARGET]},
    ],
}


def inputs(kind: str, batch_first: bool = True) -> list[Tensor]:
    lengths = (SOURCE,) if kind == "encoder" else (TARGET, SOURCE)
    arguments = [torch.randn(BATCH, n, MODEL, dtype=torch.float64) for n in lengths]
    return arguments if batch_first else [x.transpose(0, 1) for x in arguments]


def sharp(layer: nn.Module) -> Any:
    """Initialize a layer such that scores differ enough for sparse attention weights to be zero."""
    for name, parameter in layer.named_parameters():
        if not name.endswith("alpha.bias"):
            nn.init.normal_(parameter)
    return layer


def results(layer: nn.Module, arguments: list[Tensor], **options: Any) -> dict[str, Tensor]:
    """Return the output and the gradients of its squared sum."""
    leaves = [x.detach().clone().requires_grad_() for x in arguments]
    out = layer(*leaves, **options)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    result = torch.autograd.grad(out.square().sum(), [*leaves, *parameters])
    return {"output": out} | dict(zip((*(f"input {i}" for i in range(len(leaves))), *names), result, strict=True))


@mixed_masks
@every_kind
@every_variant
@pytest.mark.parametrize("train", [True, False])
def test_at_alpha_1_layers_match_pytorch(kind: str, variant: dict[str, Any], train: bool) -> None:
    ours, theirs = KINDS[kind]
    expected = sharp(theirs(**SIZES, **variant)).train(train)
    layer = ours(**SIZES, **variant, alpha=1.0).train(train)
    assert layer.state_dict().keys() == expected.state_dict().keys()
    layer.load_state_dict(expected.state_dict())
    expected.load_state_dict(layer.state_dict())
    arguments = inputs(kind, variant.get("batch_first", False))
    for masks in MASKS[kind]:
        torch.testing.assert_close(results(layer, arguments, **masks), results(expected, arguments, **masks))
    for masks in MASKS[kind][:3]:  # PyTorch's fast path gives NaN for masks of two dtypes
        with torch.no_grad():
            torch.testing.assert_close(layer(*arguments, **masks), expected(*arguments, **masks))
    single = [x[0] if variant.get("batch_first") else x[:, 0] for x in arguments]
    torch.testing.assert_close(results(layer, single), results(expected, single))


@every_kind
def test_is_causal_matches_a_causal_mask(kind: str) -> None:
    layer, arguments = sharp(KINDS[kind][0](**SIZES, batch_first=True, alpha=1.7)), inputs(kind)
    name, flag = ("src_mask", "is_causal") if kind == "encoder" else ("tgt_mask", "tgt_is_causal")
    ahead = torch.ones(arguments[0].shape[1], arguments[0].shape[1], dtype=torch.bool).triu(1)
    masked = results(layer, arguments, **{name: ahead})
    torch.testing.assert_close(results(layer, arguments, **{flag: True}), masked)
    torch.testing.assert_close(results(layer, arguments, **{flag: True, name: ahead}), masked)


@every_kind
def test_dropout_is_applied_only_in_training(kind: str) -> None:
    layer, arguments = KINDS[kind][0](**{**SIZES, "dropout": 0.5}, batch_first=True), inputs(kind)
    plain = KINDS[kind][0](**SIZES, batch_first=True)
    plain.load_state_dict(layer.state_dict())
    assert not layer(*arguments).equal(layer(*arguments))
    assert layer.eval()(*arguments).equal(plain(*arguments))


def test_cross_attention_alpha_defaults_to_alpha() -> None:
    for options, alphas, cross_alphas in (
        ({}, [1.5, 1.5], [1.5, 1.5]),
        ({"alpha": 2.0}, [2, 2], [2, 2]),
        ({"alpha": 2.0, "cross_attention_alpha": 1.25}, [2, 2], [1.25, 1.25]),
        ({"alpha": 1.0, "cross_attention_alpha": torch.tensor([1.25, 1.75])}, [1, 1], [1.25, 1.75]),
    ):
        layer = TransformerDecoderLayer(8, 2, 16, **options)
        assert layer.self_attn.alphas().tolist() == alphas and layer.multihead_attn.alphas().tolist() == cross_alphas


def test_each_attention_learns_separate_alphas() -> None:
    layer = TransformerDecoderLayer(8, 2, 16, alpha="learned", batch_first=True).double()
    own, other = layer.self_attn.alpha, layer.multihead_attn.alpha
    assert isinstance(own, PerHeadAlpha) and isinstance(other, PerHeadAlpha) and own.bias is not other.bias
    sharp(layer)(*inputs("decoder")).square().sum().backward()
    assert (own.bias.grad != 0).any() and (other.bias.grad != 0).any()
    only = TransformerDecoderLayer(8, 2, 16, cross_attention_alpha="learned")
    assert [name for name, _ in only.named_parameters() if "alpha" in name] == ["multihead_attn.alpha.bias"]
    shared = PerHeadAlpha(2)
    both = TransformerDecoderLayer(8, 2, 16, alpha=shared)
    assert both.self_attn.alpha is shared and both.multihead_attn.alpha is shared


def encoder(alpha: Any, layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    layer = TransformerEncoderLayer(**SIZES, batch_first=True, alpha=alpha, **options)
    return sharp(nn.TransformerEncoder(layer, layers, nn.LayerNorm(MODEL).double(), enable_nested_tensor=False))


def decoder(alpha: Any, layers: int = 2, **options: Any) -> nn.TransformerDecoder:
    layer = TransformerDecoderLayer(**SIZES, batch_first=True, alpha=alpha, **options)
    return sharp(nn.TransformerDecoder(layer, layers))


def attentions(model: nn.Module) -> list[MultiheadAttention]:
    return [module for module in model.modules() if isinstance(module, MultiheadAttention)]


@every_alpha
@pytest.mark.parametrize("norm_first", [False, True])
def test_pytorch_encoder_fast_path_does_not_bypass_layers(alpha: Any, norm_first: bool) -> None:
    model, (x,) = encoder(alpha, norm_first=norm_first), inputs("encoder")
    for masks in ({}, {"src_key_padding_mask": PADDING}, {"mask": MASKS["encoder"][2]["src_mask"], "is_causal": True}):
        expected = model.train()(x, **masks)
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(x, **masks), expected)
        density = torch.stack([attention.stats().density for attention in attentions(model)])
        assert (density == 1).all() if alpha == 1 else (density < 1).any()
    expected = x
    for layer in model.layers:
        expected = layer(expected, src_key_padding_mask=PADDING)
    torch.testing.assert_close(model(x, src_key_padding_mask=PADDING), model.norm(expected))


def test_cloned_layers_learn_separate_alphas() -> None:
    model = encoder("learned", 3)
    biases = [attention.alpha.bias for attention in attentions(model)]
    assert len({id(bias) for bias in biases}) == 3
    twin = copy.deepcopy(model)
    twin(*inputs("encoder")).square().sum().backward()
    assert all(bias.grad is None for bias in biases)
    assert all((attention.alpha.bias.grad != 0).any() for attention in attentions(twin))


@every_alpha
@pytest.mark.parametrize("chunks", [(1,) * 6, (2, 3, 1)], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_decoding_with_caches_matches_the_full_pass(alpha: Any, chunks: tuple[int, ...], norm_first: bool) -> None:
    model = decoder(alpha, norm_first=norm_first)
    memory, target = inputs("encoder")[0], torch.randn(BATCH, 6, MODEL, dtype=torch.float64)
    full = model(target, memory, tgt_is_causal=True, memory_key_padding_mask=PADDING)
    expected = torch.autograd.grad(full.square().sum(), list(model.parameters()))
    for graded in (False, True):
        caches, result = [(KeyValueCache(), KeyValueCache()) for _ in model.layers], []
        with torch.set_grad_enabled(graded):
            for x in target.split(chunks, 1):
                for layer, own in zip(model.layers, caches, strict=True):
                    x = layer(x, memory, tgt_is_causal=True, memory_key_padding_mask=PADDING, caches=own)
                result.append(x)
        assert [(len(own), len(other)) for own, other in caches] == [(6, SOURCE)] * 2
        torch.testing.assert_close(torch.cat(result, 1), full)
    gradients = torch.autograd.grad(torch.cat(result, 1).square().sum(), list(model.parameters()))
    torch.testing.assert_close(gradients, expected)


def test_memory_is_read_only_at_the_first_step() -> None:
    layer, (target, memory) = sharp(TransformerDecoderLayer(**SIZES, batch_first=True)), inputs("decoder")
    caches = (KeyValueCache(), KeyValueCache())
    with torch.no_grad():
        full = layer(target, memory, tgt_is_causal=True)
        result = [layer(target[:, :1], memory, caches=caches)]
        result += [layer(x, torch.full_like(memory, torch.nan), caches=caches) for x in target[:, 1:].split(1, 1)]
    torch.testing.assert_close(torch.cat(result, 1), full)


@every_kind
def test_layers_support_bfloat16_and_meta_device(kind: str) -> None:
    options = {**SIZES, "dtype": torch.bfloat16, "batch_first": True, "alpha": "learned"}
    layer = KINDS[kind][0](**options)
    weights = layer.state_dict()
    assert all(x.dtype == (torch.float32 if "alpha" in name else torch.bfloat16) for name, x in weights.items())
    arguments = [x.bfloat16() for x in inputs(kind)]
    out = layer(*arguments)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.double(), copy.deepcopy(layer).double()(*(x.double() for x in arguments)), atol=0.1, rtol=0.1
    )
    empty = KINDS[kind][0](**options, device="meta")
    assert all(x.is_meta for x in empty.state_dict().values())
    empty.load_state_dict(layer.state_dict(), assign=True)
    assert empty(*arguments).equal(out)


@pytest.mark.parametrize("norm_first", [False, True])
def test_key_lengths_match_padding_masks(norm_first: bool) -> None:
    lengths = torch.tensor([SOURCE, 2, 4])
    for kind, name in (("encoder", "src"), ("decoder", "memory")):
        layer, arguments = sharp(KINDS[kind][0](**SIZES, batch_first=True, norm_first=norm_first)), inputs(kind)
        result = results(layer, arguments, **{f"{name}_key_lengths": lengths})
        torch.testing.assert_close(result, results(layer, arguments, **{f"{name}_key_padding_mask": PADDING}))


@pytest.mark.parametrize("norm_first", [False, True])
def test_decoder_returns_cross_attention_weights(norm_first: bool) -> None:
    layer = sharp(TransformerDecoderLayer(**SIZES, batch_first=True, norm_first=norm_first))
    arguments = inputs("decoder")
    out, weights = layer(*arguments, memory_key_padding_mask=PADDING, need_weights=True)
    torch.testing.assert_close(out, layer(*arguments, memory_key_padding_mask=PADDING))
    assert weights.shape == (BATCH, TARGET, SOURCE) and (weights[PADDING.unsqueeze(1).expand_as(weights)] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, TARGET, dtype=torch.float64))
    support = (weights > 0).sum(-1)
    assert (layer.multihead_attn.support().amax(1) <= support).all()


@every_kind
def test_attention_dropout_defaults_to_dropout(kind: str) -> None:
    layer = KINDS[kind][0](**{**SIZES, "dropout": 0.1}, attention_dropout=0.4)
    assert {a.dropout for a in attentions(layer)} == {0.4}
    assert {m.p for m in layer.modules() if isinstance(m, nn.Dropout)} == {0.1}
    assert {a.dropout for a in attentions(KINDS[kind][0](**{**SIZES, "dropout": 0.1}))} == {0.1}
