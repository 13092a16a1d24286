"""Tests of replacing PyTorch's attention inside modules: at alpha 1, the outputs stay the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from tsallis.models import LanguageModel
from tsallis.nn import (
    MultiheadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    densify_module,
    sparsify_module,
)


def transformer(**options: Any) -> nn.Transformer:
    sizes = {"d_model": 16, "nhead": 4, "num_encoder_layers": 2, "num_decoder_layers": 1, "dim_feedforward": 24}
    return nn.Transformer(**sizes, dropout=0.0, **options)


LAYERS = [
    {},
    {"batch_first": True, "bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 6, "vdim": 5, "batch_first": True},
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
def test_sparsified_and_densified_attention_match_pytorch(options: dict[str, Any]) -> None:
    old = nn.MultiheadAttention(16, 4, **options).eval()
    new = sparsify_module(old, 1.0)
    assert isinstance(new, MultiheadAttention) and not new.training
    assert {id(x) for x in new.parameters()} == {id(x) for x in old.parameters()}
    query, key, value = torch.randn(3, 5, 16), torch.randn(3, 5, old.kdim), torch.randn(3, 5, old.vdim)
    expected = old(query, key, value)
    torch.testing.assert_close(new(query, key, value), expected, rtol=1e-5, atol=1e-6)
    dense = densify_module(new)
    assert type(dense) is nn.MultiheadAttention and not dense.training
    torch.testing.assert_close(dense(query, key, value), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_sparsify_transformer_at_alpha_1_matches_pytorch(training: bool, norm_first: bool) -> None:
    """Check a padded source and a causal decoder. In evaluation mode, PyTorch's layers have a fast path."""
    model = transformer(batch_first=True, norm_first=norm_first).train(training)
    src, tgt = torch.randn(3, 6, 16), torch.randn(3, 5, 16)
    padding = torch.arange(6) >= torch.tensor([[6], [4], [2]])
    masks: dict[str, Tensor] = {
        "tgt_mask": model.generate_square_subsequent_mask(5),
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }
    before = model(src, tgt, **masks)
    parameters = [id(x) for x in model.parameters()]
    assert sparsify_module(model, 1.0) is model
    torch.testing.assert_close(model(src, tgt, **masks), before, rtol=1e-5, atol=1e-5)
    assert [id(x) for x in model.parameters()] == parameters and model.training == training
    assert len([x for x in model.modules() if isinstance(x, MultiheadAttention)]) == 4
    assert not torch.allclose(sparsify_again(model)(src, tgt, **masks), before, atol=1e-4)


def sparsify_again(model: nn.Module) -> nn.Module:
    for part in model.modules():
        if isinstance(part, MultiheadAttention):
            part.alpha = 2.0
    return model


def test_learned_alphas_get_gradients_and_old_weights_load() -> None:
    model = transformer()
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    sparsify_module(model, "learned", initial=1.5)
    model(torch.randn(6, 3, 16), torch.randn(5, 3, 16)).square().mean().backward()
    learned = [x for name, x in model.named_parameters() if name.endswith("alpha.bias")]
    assert len(learned) == 4 and all(x.grad is not None and x.grad.abs().max() > 0 for x in learned)
    model.load_state_dict(weights)


def padded_encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_fast_path_does_not_bypass_sparse_attention(activation: str) -> None:
    """Check sparse layers without gradients, when PyTorch would run whole layers on nested tensors by one operation."""
    model = padded_encoder(activation=activation)
    src, padding = torch.randn(3, 6, 16), torch.arange(6) >= torch.tensor([[6], [4], [2]])
    arguments = {"src_key_padding_mask": padding}
    slow = sparsify_module(padded_encoder(activation=activation), 2.0)
    slow.load_state_dict(model.state_dict())
    expected = slow(src, **arguments).detach()  # gradients disable the fast path
    with torch.no_grad():
        before = model(src, **arguments)
        dense = sparsify_module(model, 1.0)(src, **arguments)
        torch.testing.assert_close(dense[~padding], before[~padding], rtol=1e-5, atol=1e-5)
        sparse = sparsify_again(model)(src, **arguments)
    torch.testing.assert_close(sparse, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(sparse[~padding], before[~padding], atol=1e-3)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_sparsified_layers_stay_sparse_under_no_grad(batch_first: bool, norm_first: bool) -> None:
    """Check evaluation mode, in which PyTorch's encoder layer would run one operation with softmax."""
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": batch_first, "norm_first": norm_first}
    encoder = nn.TransformerEncoderLayer(16, 4, 24, **options).eval()
    decoder = nn.TransformerDecoderLayer(16, 4, 24, **options).eval()
    src, tgt = torch.randn(3, 6, 16), torch.randn(3, 5, 16)
    if not batch_first:
        src, tgt = src.transpose(0, 1), tgt.transpose(0, 1)
    padding = torch.arange(6) >= torch.tensor([[6], [4], [2]])

    def run() -> tuple[Tensor, Tensor]:
        memory = encoder(src, src_key_padding_mask=padding)
        return memory, decoder(tgt, memory, memory_key_padding_mask=padding)

    with torch.no_grad():
        dense = run()
    for layer in (encoder, decoder):
        sparsify_module(layer, 2.0)
    slow = run()
    with torch.no_grad():
        sparse = run()
    for ours, theirs, other in zip(sparse, slow, dense, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(ours, other, atol=1e-3)
    for attention in (encoder.self_attn, decoder.self_attn, decoder.multihead_attn):
        assert attention.stats().density.max() < 1
    for layer in (encoder, decoder):
        densify_module(layer)
    with torch.no_grad():
        for ours, theirs in zip(run(), dense, strict=True):
            assert torch.equal(ours, theirs)


def test_nested_tensors_are_refused() -> None:
    layer = sparsify_module(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)).eval()
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="query must not be a nested tensor: pad it and pass key_pad"),
    ):
        layer(torch.nested.nested_tensor([torch.randn(3, 16), torch.randn(5, 16)]))


def test_densify_restores_attention_and_keeps_parameters() -> None:
    model = padded_encoder()
    src, padding = torch.randn(3, 6, 16), torch.arange(6) >= torch.tensor([[6], [4], [2]])
    with torch.no_grad():
        before = model(src, src_key_padding_mask=padding)
    names, parameters = list(model.state_dict()), list(model.parameters())
    sparsify_module(model, "learned")
    assert densify_module(model) is model
    assert list(model.state_dict()) == names
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert {type(x) for x in model.modules() if "attn" in type(x).__name__.lower()} <= {nn.MultiheadAttention}
    with torch.no_grad():
        assert torch.equal(model(src, src_key_padding_mask=padding), before)  # uses the fast path again
        model.layers[0].self_attn.in_proj_weight.add_(0.1)
        assert not torch.equal(model(src, src_key_padding_mask=padding), before)


UNSUPPORTED = [
    ({"positions": "alibi"}, "positions 'alibi'"),
    ({"length_scale": "ssmax"}, "a length scale"),
    ({"num_kv_heads": 2}, "2 key heads for 4 query heads"),
]


@pytest.mark.parametrize(("options", "words"), UNSUPPORTED)
def test_densify_rejects_options_unsupported_by_pytorch(options: dict[str, Any], words: str) -> None:
    module = nn.ModuleDict({"own": MultiheadAttention(16, 4, **options)})
    with pytest.raises(TypeError, match=f"own has {words}, which torch.nn.MultiheadAttention does not"):
        densify_module(module)
    assert type(module["own"]) is MultiheadAttention


class Adapter(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def replace_forward(attention: nn.MultiheadAttention) -> None:
    attention.out_proj.forward = lambda x: x


OUTPUT_CHANGES: dict[str, Any] = {
    "pre-hook": lambda a: a.out_proj.register_forward_pre_hook(lambda *_: None),
    "hook": lambda a: a.out_proj.register_forward_hook(lambda *_: None),
    "backward pre-hook": lambda a: a.out_proj.register_full_backward_pre_hook(lambda *_: None),
    "backward hook": lambda a: a.out_proj.register_full_backward_hook(lambda *_: None),
    "replaced forward": replace_forward,
    "adapter": lambda a: setattr(a, "out_proj", Adapter(16, 16)),
    "sequence": lambda a: setattr(a, "out_proj", nn.Sequential(a.out_proj)),
    "quantized": lambda a: torch.ao.quantization.quantize_dynamic(a, inplace=True),
}


@pytest.mark.parametrize("change", OUTPUT_CHANGES)
def test_densify_rejects_output_layers_that_pytorch_ignores(change: str) -> None:
    model = nn.ModuleDict({"own": MultiheadAttention(16, 4, alpha=1.0)}).eval()
    OUTPUT_CHANGES[change](model["own"])
    with pytest.raises(TypeError, match=r"own\.out_proj must be a torch\.nn\.Linear without hooks"):
        densify_module(model)
    x = torch.randn(5, 3, 16)
    assert sparsify_module(model, "learned")["own"](x, x, x)[0].shape == x.shape


def test_densify_keeps_a_parametrized_output_layer() -> None:
    sparse = MultiheadAttention(16, 4, alpha=1.0)
    parametrizations.weight_norm(sparse.out_proj)
    x = torch.randn(5, 3, 16)
    expected = sparse(x, x, x)[0]
    torch.testing.assert_close(densify_module(sparse)(x, x, x)[0], expected, rtol=1e-5, atol=1e-6)


def test_dynamic_quantization_keeps_the_output_layer_of_a_densified_attention() -> None:
    dense = densify_module(nn.Sequential(MultiheadAttention(16, 4))).eval()
    x = torch.randn(5, 3, 16)
    expected = dense[0](x, x, x)[0]
    assert torch.equal(torch.ao.quantization.quantize_dynamic(dense)[0](x, x, x)[0], expected)


def test_densify_without_replaceable_attention_raises() -> None:
    with pytest.raises(ValueError, match=r"ModuleList has no replaceable tsallis.nn.MultiheadAttention"):
        densify_module(nn.ModuleList([TransformerDecoderLayer(16, 4)]))
    with pytest.raises(ValueError, match="Transformer has no replaceable"):
        densify_module(transformer())


def test_names_select_the_attentions_to_sparsify() -> None:
    model = sparsify_module(transformer(), 1.5, names=["encoder.*", "*.multihead_attn"])
    kinds = {name: type(x) for name, x in model.named_modules() if name.endswith("attn")}
    assert {name for name, kind in kinds.items() if kind is nn.MultiheadAttention} == {"decoder.layers.0.self_attn"}


def test_second_sparsify_changes_alpha_of_matching_names() -> None:
    model = sparsify_module(transformer(), 1.5)
    attention = model.encoder.layers[0].self_attn
    sparsify_module(model, 2.0, names="encoder.*")
    assert model.encoder.layers[0].self_attn is attention and attention.alpha == 2.0
    assert model.decoder.layers[0].self_attn.alpha == 1.5
    sparsify_module(model, "learned", names="encoder.*", initial=1.3)
    torch.testing.assert_close(attention.alphas(), torch.full((4,), 1.3))
    with pytest.raises(ValueError, match="at least 1"):
        sparsify_module(model, 0.5)
    assert model.decoder.layers[0].self_attn.alpha == 1.5
    layer = sparsify_module(TransformerDecoderLayer(16, 4), 2.0)
    assert layer.self_attn.alpha == layer.multihead_attn.alpha == 2.0


def test_names_select_the_attentions_to_densify() -> None:
    model = sparsify_module(transformer(), 1.5)
    densify_module(model, names="encoder.*")
    assert type(model.encoder.layers[0].self_attn) is nn.MultiheadAttention
    assert isinstance(model.decoder.layers[0].self_attn, MultiheadAttention)
    with pytest.raises(ValueError, match=r"MultiheadAttention whose name matches encoder\.\*"):
        densify_module(model, names="encoder.*")


def test_shared_attention_is_replaced_once() -> None:
    attention = nn.MultiheadAttention(16, 4)
    model = sparsify_module(nn.ModuleDict({"one": attention, "other": attention}), 1.5)
    assert model["one"] is model["other"] and isinstance(model["one"], MultiheadAttention)


def test_sparsify_rejects_invalid_modules_names_and_alpha() -> None:
    class Own(nn.MultiheadAttention):
        pass

    with pytest.raises(TypeError, match=r"0 must be a torch\.nn\.MultiheadAttention, not a subclass, got Own"):
        sparsify_module(nn.Sequential(Own(16, 4)))
    with pytest.raises(ValueError, match=r"Linear has no torch\.nn\.MultiheadAttention$"):
        sparsify_module(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no torch\.nn\.MultiheadAttention whose name matches head\.\*"):
        sparsify_module(transformer(), names="head.*")
    with pytest.raises(ValueError, match="alpha must be a number or 'learned', got 'learnt'"):
        sparsify_module(transformer(), "learnt")  # type: ignore[arg-type]


def test_sparsify_rejects_pruned_or_modified_attention() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"attention": nn.MultiheadAttention(16, 4)}))

    pruned = model()
    prune.random_unstructured(pruned[1]["attention"], "in_proj_weight", amount=0.5)
    with pytest.raises(TypeError, match=r"1\.attention\.in_proj_weight must be a parameter, .*prune\.remove"):
        sparsify_module(pruned)
    prune.remove(pruned[1]["attention"], "in_proj_weight")
    assert isinstance(sparsify_module(pruned)[1]["attention"], MultiheadAttention)
    normed = model()
    parametrizations.weight_norm(normed[1]["attention"], "in_proj_weight")
    with pytest.raises(TypeError, match=r"1\.attention has parametrizations of in_proj_weight.*remove_param"):
        sparsify_module(normed)
    parametrize.remove_parametrizations(normed[1]["attention"], "in_proj_weight")
    assert isinstance(sparsify_module(normed)[1]["attention"], MultiheadAttention)
    replaced = model()
    replaced[1]["attention"].forward = lambda *inputs, **options: inputs
    with pytest.raises(TypeError, match=r"1\.attention\.forward was replaced"):
        sparsify_module(replaced)
    taken = model()
    taken[1]["attention"].alpha = 2
    with pytest.raises(TypeError, match=r"1\.attention\.alpha was added to a MultiheadAttention, but"):
        sparsify_module(taken)


@pytest.mark.parametrize("back", [False, True])
def test_hooks_move_to_the_replacement(back: bool) -> None:
    old = nn.MultiheadAttention(16, 4)
    calls: list[str] = []
    modules: list[nn.Module] = []

    def note(name: str) -> Any:
        def hook(module: nn.Module, *_: Any) -> None:
            calls.append(name)
            modules.append(module)

        return hook

    handles = [
        old.register_forward_pre_hook(note("before")),
        old.register_forward_hook(note("after"), always_call=True),
        old.register_forward_hook(note("with options"), with_kwargs=True),
        old.register_full_backward_pre_hook(note("backward, before")),
        old.register_full_backward_hook(note("backward")),
        old.register_state_dict_pre_hook(note("state, before")),
        old.register_state_dict_post_hook(note("state")),
        old.register_load_state_dict_pre_hook(note("load, before")),
        old.register_load_state_dict_post_hook(note("load")),
    ]
    new = sparsify_module(nn.ModuleList([old]))[0]
    if back:
        new = densify_module(nn.ModuleList([new]))[0]
    del old
    x = torch.randn(5, 2, 16, requires_grad=True)
    new(x, x, x)[0].sum().backward()
    new.load_state_dict(new.state_dict())
    names = ["before", "after", "with options", "backward, before", "backward", "state, before", "state"]
    assert calls == [*names, "load, before", "load"]
    assert all(module is new for module in modules)
    for handle in handles:
        handle.remove()
    calls.clear()
    new(x, x, x)[0].sum().backward()
    new.load_state_dict(new.state_dict())
    assert not calls


def test_learned_alphas_start_at_random_in_every_module() -> None:
    """Check that learned alphas start at random in every module; only `initial` gives heads the same start."""
    starts = []
    for make in (
        lambda: MultiheadAttention(16, 4, alpha="learned"),
        lambda: sparsify_module(nn.MultiheadAttention(16, 4), "learned"),
        lambda: TransformerEncoderLayer(16, 4, 16, alpha="learned").self_attn,
        lambda: sparsify_module(nn.TransformerEncoderLayer(16, 4, 16), "learned").self_attn,
        lambda: sparsify_module(MultiheadAttention(16, 4), "learned"),
        lambda: LanguageModel(9, d_model=16, heads=4, layers=1, d_ff=16, alpha="learned").layers[0].self_attn,
    ):
        torch.manual_seed(0)
        starts.append(torch.cat([make().alphas().detach() for _ in range(50)]))
    for start in starts:
        assert len(start.unique()) == 200 and start.min() < 1.25 and start.max() > 1.75
        assert start.mean() == pytest.approx(1.5, abs=0.1)
    near = sparsify_module(nn.MultiheadAttention(16, 4), "learned", initial=1.1)
    torch.testing.assert_close(near.alphas().detach(), torch.full((4,), 1.1))


def test_added_attributes_move_to_the_replacement() -> None:
    old = nn.MultiheadAttention(16, 4).eval()
    old.layer_index = 7
    old.gate = nn.Linear(2, 2)
    old.temperature = nn.Parameter(torch.ones(1))
    old.register_buffer("steps", torch.zeros(1), persistent=False)
    old.requires_grad_(False)
    new = sparsify_module(old, "learned")
    assert isinstance(new, MultiheadAttention) and not new.training
    assert new.layer_index == 7 and new.gate is old.gate and new.temperature is old.temperature
    assert new.steps is old.steps and "steps" not in new.state_dict() and "gate.weight" in new.state_dict()
    assert not new.in_proj_weight.requires_grad
    assert densify_module(new).layer_index == 7


@pytest.mark.parametrize("assign", [False, True])
def test_replaced_attentions_load_state_dicts(assign: bool) -> None:
    dense = densify_module(MultiheadAttention(8, 2))
    dense.load_state_dict(dense.state_dict(), assign=assign)
    sparse = sparsify_module(nn.MultiheadAttention(8, 2))
    sparse.load_state_dict(sparse.state_dict(), assign=assign)
    built = MultiheadAttention(8, 2)
    assert len(sparse._load_state_dict_post_hooks) == len(built._load_state_dict_post_hooks)
    assert not dense._load_state_dict_post_hooks


def test_changed_constants_survive_a_cast() -> None:
    attention = MultiheadAttention(8, 2, positions="alibi")
    assert attention.slopes is not None
    attention.slopes = torch.tensor([3.0, 4.0])
    assert attention.double().slopes.tolist() == [3, 4]
    attention.slopes.fill_(5.0)
    assert attention.float().slopes.tolist() == [5, 5]
