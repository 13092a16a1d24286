"""Tests specific to the Transformer: softmax equals PyTorch's, positions, alphas, shared matrices, statistics."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsallis.models import TransformerSeq2Seq
from tsallis.models.protocol import join
from tsallis.nn import PerHeadAlpha
from tsallis.nn.positions import SinusoidalPositions

SIZES: dict[str, Any] = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12}
KINDS = ("encoder", "decoder", "cross")
LENGTHS = torch.tensor([5, 2, 4])


def model(**arguments: Any) -> TransformerSeq2Seq:
    return TransformerSeq2Seq(13, 11, **{**SIZES, **arguments})


def sharp(**arguments: Any) -> TransformerSeq2Seq:
    """Return a float64 model without dropout, with scores far enough apart for zero weights."""
    result = model(**{"dropout": 0.0, **arguments}).double()
    with torch.no_grad():
        for name, parameter in result.named_parameters():
            if name.endswith("in_proj_weight"):
                parameter.mul_(8)
    return result


GENERATOR = torch.Generator().manual_seed(3)
SRC = torch.randint(4, 11, (3, 5), generator=GENERATOR).masked_fill(torch.arange(5) >= LENGTHS.unsqueeze(1), 0)
TGT = torch.randint(4, 11, (3, 4), generator=GENERATOR)


def attentions(result: TransformerSeq2Seq) -> dict[str, list[Any]]:
    encoder, decoder = result.encoder.layers, result.decoder.layers
    return {
        "encoder": [layer.self_attn for layer in encoder],
        "decoder": [layer.self_attn for layer in decoder],
        "cross": [layer.multihead_attn for layer in decoder],
    }


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_softmax_model_matches_pytorch_transformer(norm: str, activation: str) -> None:
    ours = sharp(norm=norm, activation=activation, attention="softmax", encoder_layers=3)
    options = {"norm_first": norm == "pre", "activation": activation, "batch_first": True, "dtype": torch.float64}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning about nested tensors
        theirs = nn.Transformer(8, 2, 3, 2, 12, dropout=0.0, **options)
    if norm == "post":  # PyTorch would normalise the output of the last layer again
        theirs.encoder.norm = theirs.decoder.norm = None
    parts = {k: v for k, v in ours.state_dict().items() if k.startswith(("encoder", "decoder"))}
    theirs.load_state_dict(parts, strict=True)
    pad = torch.arange(5) >= LENGTHS.unsqueeze(1)
    waves = torch.zeros(5, 8, dtype=torch.float64)
    for t in range(5):
        for i in range(4):
            angle = t / 10000 ** (2 * i / 8)
            waves[t, 2 * i], waves[t, 2 * i + 1] = math.sin(angle), math.cos(angle)
    embedded = [ours.src_embedding(SRC) * math.sqrt(8) + waves, ours.tgt_embedding(TGT) * math.sqrt(8) + waves[:4]]
    masks = {"src_key_padding_mask": pad, "memory_key_padding_mask": pad}
    masks["tgt_mask"] = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = theirs(*embedded, **masks)
    result = ours(SRC, LENGTHS, TGT).hidden
    torch.testing.assert_close(result, expected, atol=1e-10, rtol=0)
    names, mine = zip(*((n, p) for n, p in ours.named_parameters() if n in parts), strict=True)
    inputs = dict(theirs.named_parameters())
    weight = torch.randn_like(result)
    ours_grads = torch.autograd.grad((result * weight).sum(), mine)
    their_grads = torch.autograd.grad((expected * weight).sum(), [inputs[n] for n in names])
    for name, one, other in zip(names, ours_grads, their_grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0, msg=name)


def test_positions_have_no_limit() -> None:
    positions = SinusoidalPositions(6)
    like = torch.zeros(1, dtype=torch.float64)
    few = positions(like, 0, 5)
    many = positions(like, 0, 3000)
    assert many.shape == (3000, 6) and many[:5].equal(few)
    assert positions(like, 2990, 10).equal(many[2990:])
    assert positions(like, torch.tensor([7, 2999, 0]), 1).equal(many[[7, 2999, 0]].unsqueeze(1))
    assert positions(torch.zeros(1), 3, 1).dtype == torch.float32
    assert many[2500, 1].item() == pytest.approx(math.cos(2500), abs=1e-12)
    assert "positions" not in "".join(model().state_dict())


def test_attention_options_set_alphas_per_kind() -> None:
    inputs = {"encoder_attention": "softmax", "decoder_attention": "sparsemax", "cross_attention": "entmax"}
    alphas = {kind: x.tolist() for kind, x in model(**inputs, attention_alpha=1.3).alphas().items()}
    assert alphas == {"encoder": [[1, 1]] * 2, "decoder": [[2, 2]] * 2, "cross": [[pytest.approx(1.3)] * 2] * 2}
    mixed = model(attention="sparsemax", cross_attention="learned", encoder_layers=1, decoder_layers=3)
    shapes = {kind: tuple(x.shape) for kind, x in mixed.alphas().items()}
    assert shapes == {"encoder": (1, 2), "decoder": (3, 2), "cross": (3, 2)}
    names = [name for name, _ in mixed.named_parameters() if "alpha" in name]
    assert names == [f"decoder.layers.{i}.multihead_attn.alpha.bias" for i in range(3)]


@pytest.mark.parametrize(
    ("tie", "parameters"), [("none", [2] * 6), ("layer", [1] * 6), ("kind", [1] * 3), ("global", [1])]
)
def test_tie_alphas_shares_learned_alphas(tie: str, parameters: list[int]) -> None:
    result = sharp(attention="learned", tie_alphas=tie)
    own = [module for module in result.modules() if isinstance(module, PerHeadAlpha)]
    assert [len(module.bias) for module in own] == parameters
    alphas = torch.stack(list(result.alphas().values()))  # [kinds, layers, heads]
    assert alphas.shape == (3, 2, 2) and ((alphas > 1) & (alphas < 2)).all()
    expected = {"none": 12, "layer": 6, "kind": 3, "global": 1}[tie]
    assert alphas.unique().numel() == expected
    torch.testing.assert_close(alphas.unique(), (1 + torch.cat([m.bias for m in own]).sigmoid()).sort().values)
    soft = model(attention="learned", tie_alphas=tie).double()
    soft(SRC, LENGTHS, TGT).hidden.square().sum().backward()
    grads = [p.grad for n, p in soft.named_parameters() if "alpha" in n]
    assert len(grads) == len(parameters) and all((g != 0).all() for g in grads)
    again = copy.deepcopy(result)
    again.load_state_dict({n: x for n, x in result.state_dict().items() if n not in result.shared_parameters()})
    assert torch.stack(list(again.alphas().values())).equal(alphas)


@pytest.mark.parametrize("share", ["none", "target", "all"])
def test_share_option_ties_embeddings(share: str) -> None:
    result = TransformerSeq2Seq(11, 11, **SIZES, share=share)
    ids = [id(result.src_embedding.weight), id(result.tgt_embedding.weight), id(result.output.weight)]
    assert len(set(ids)) == {"none": 3, "target": 2, "all": 1}[share]
    aliases = {"none": [], "target": ["output.projection.weight"]}
    aliases["all"] = ["tgt_embedding.weight", "output.projection.weight"]
    first = "src_embedding.weight" if share == "all" else "tgt_embedding.weight"
    assert result.shared_parameters() == dict.fromkeys(aliases[share], first)
    moved = copy.deepcopy(result).double()
    assert moved.shared_parameters() == result.shared_parameters() and moved.output.weight.dtype == torch.float64
    before = result.output.weight.detach().clone()
    optimiser = torch.optim.SGD(result.parameters(), 0.1)
    result.output.loss(result(SRC, LENGTHS, TGT).hidden, TGT).backward()
    optimiser.step()
    assert not result.output.weight.equal(before)
    assert result.output.weight.equal(result.tgt_embedding.weight) == (share != "none")
    assert result.src_embedding.weight.equal(result.tgt_embedding.weight) == (share == "all")
    assert (result.src_embedding.weight[0] == 0).all() and (result.tgt_embedding.weight[0] == 0).all()


@pytest.mark.parametrize("need_attention", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"norm": "pre", "attention": "learned", "tie_alphas": "kind"}], ids=str)
def test_activation_checkpointing_does_not_change_results(arguments: dict[str, Any], need_attention: bool) -> None:
    plain = model(dropout=0.3, **arguments).double()
    again = model(dropout=0.3, checkpoint_activations=True, **arguments).double()
    again.load_state_dict(plain.state_dict())
    calls, result = [], []
    for layer in (*again.encoder.layers, *again.decoder.layers):
        layer.linear1.register_forward_hook(lambda *_: calls.append(1))
    for one in (plain, again):
        torch.manual_seed(5)
        decoded = one(SRC, LENGTHS, TGT, need_attention=need_attention)
        assert (decoded.attention is None) != need_attention
        number = decoded.hidden.square().sum() + (0 if decoded.attention is None else decoded.attention.square().sum())
        result.append([decoded.hidden, *torch.autograd.grad(number, list(one.parameters()), allow_unused=True)])
    assert len(calls) == 8
    for one, other in zip(*result, strict=True):
        assert (one is None and other is None) or one.equal(other)
    with torch.no_grad():
        again(SRC, LENGTHS, TGT)
    assert len(calls) == 12


def test_attention_is_returned_only_on_request() -> None:
    result = sharp().eval()
    without, inputs = result(SRC, LENGTHS, TGT), result(SRC, LENGTHS, TGT, need_attention=True)
    assert without.attention is None and inputs.attention is not None
    # With all weights in memory, sums are computed in a different order.
    torch.testing.assert_close(without.hidden, inputs.hidden, atol=1e-13, rtol=0)
    assert inputs.attention.shape == (3, 4, 5)
    torch.testing.assert_close(inputs.attention.sum(-1), torch.ones(3, 4, dtype=torch.float64))


def test_num_attended_and_statistics_match_weights() -> None:
    result = sharp(attention="learned").eval()
    saved: list[tuple[Any, Tensor]] = []
    hooks = []
    for attention in (a for kind in KINDS for a in attentions(result)[kind]):
        hooks += [
            attention.register_forward_pre_hook(
                lambda _, a, k: (a, {**k, "need_weights": True, "average_attn_weights": False}), with_kwargs=True
            ),
            attention.register_forward_hook(lambda module, _, out: saved.append((module, out[1]))),
        ]
    result(SRC, LENGTHS, TGT)
    for hook in hooks:
        hook.remove()
    weights = {id(module): w for module, w in saved}
    held = result(SRC, LENGTHS, TGT, need_attention=True).attention
    torch.testing.assert_close(held, weights[id(attentions(result)["cross"][-1])].mean(1))
    decoded = result(SRC, LENGTHS, TGT)
    context = [(weights[id(a)] > 0).sum(-1).float() for a in attentions(result)["cross"]]
    torch.testing.assert_close(result.num_attended(decoded), torch.stack(context).mean((0, 2)))
    assert result.num_attended(decoded).lt(LENGTHS.unsqueeze(1)).any()
    stats = result.attention_stats()
    assert tuple(stats) == KINDS
    real = torch.arange(5) < LENGTHS.unsqueeze(1)
    totals = {"encoder": LENGTHS.square().sum(), "decoder": torch.tensor(3 * 10), "cross": 4 * LENGTHS.sum()}
    queries = {"encoder": LENGTHS.sum(), "decoder": 12, "cross": 12}
    for kind in KINDS:
        for layer, of_layer, alphas in zip(attentions(result)[kind], stats[kind], result.alphas()[kind], strict=True):
            visible = weights[id(layer)] > 0  # [batch, heads, queries, keys]
            if kind == "encoder":
                visible = visible & real[:, None, :, None]
            chosen = visible.sum((0, 2, 3))
            torch.testing.assert_close(of_layer.density, (chosen / totals[kind]).float())
            torch.testing.assert_close(of_layer.support, (chosen / queries[kind]).float())
            assert of_layer.alpha.equal(alphas)


def test_num_attended_raises_after_another_pass() -> None:
    result = sharp()
    decoded = result(SRC, LENGTHS, TGT)
    with pytest.raises(RuntimeError, match="no attended positions are recorded"):
        sharp().num_attended(decoded)
    with pytest.raises(RuntimeError, match="no attention weights are recorded"):
        sharp().attention_stats()
    result(SRC[:2], LENGTHS[:2], TGT[:2, :3])
    with pytest.raises(RuntimeError, match=r"2 rows and 3 steps, .* 3 rows and 4 steps"):
        result.num_attended(decoded)


def test_compiled_model_matches_and_records_no_statistics() -> None:
    result = sharp(attention="learned", layers=1)
    expected = result(SRC, LENGTHS, TGT)
    num_attended = result.num_attended(expected)
    assert num_attended.shape == (3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(result, backend="aot_eager", fullgraph=True)
    decoded = compiled(SRC, LENGTHS, TGT)
    torch.testing.assert_close(decoded.hidden, expected.hidden)
    parameters = [p for n, p in result.named_parameters() if not n.startswith("output")]
    one, other = (torch.autograd.grad(x.hidden.square().sum(), parameters) for x in (decoded, expected))
    torch.testing.assert_close(one, other)
    with pytest.raises(RuntimeError, match=r"without torch\.compile"):
        result.num_attended(decoded)
    again = result(SRC, LENGTHS, TGT)
    assert result.num_attended(again).equal(num_attended)


def test_sources_are_projected_once_and_not_copied_per_row() -> None:
    result = sharp().eval()
    calls: list[int] = []
    for attention in attentions(result)["cross"]:
        project = attention.keys_and_values
        attention.keys_and_values = lambda memory, project=project: (calls.append(1), project(memory))[1]
    with torch.no_grad():
        state = result.start(result.encode(SRC, LENGTHS))
        beams = state.select(torch.tensor([0, 0, 0, 1, 2, 2]))
        assert beams.sources is state.sources and beams.source.tolist() == [0, 0, 0, 1, 2, 2]
        state = result.step(beams, torch.full((6,), 1)).state
        state = join([state.select(torch.tensor([1])), state.select(torch.tensor([0, 4]))])
        assert state.sources is beams.sources and state.source.tolist() == [0, 0, 2]
        result.step(state, torch.full((3,), 5))
    assert len(calls) == 2


@torch.no_grad()
def test_sources_without_rows_are_dropped() -> None:
    result = sharp().eval()
    src, lengths = torch.randint(4, 11, (8, 5)), torch.tensor([5, 4, 3, 2, 1, 5, 5, 5])
    state = result.start(result.encode(src, lengths))
    record: list[int] = []
    one = attentions(result)["cross"][0]
    one.register_forward_pre_hook(lambda module, args: record.append(len(args[0])) if module is one else None)
    history, rows = torch.full((8, 1), 1), torch.arange(8)
    for keep in ([0, 2, 3, 5, 6, 7], [0, 0, 5, 1], [1, 2, 3], [2], [0, 0]):
        step = result.step(state, history[:, -1])
        hidden = copy.deepcopy(result)(src[rows], lengths[rows], history).hidden[:, -1]
        torch.testing.assert_close(step.scores, result.output.scores(hidden))
        state, rows = step.state.select(torch.tensor(keep)), rows[keep]
        history = torch.cat([history[keep], torch.randint(4, 11, (len(rows), 1))], 1)
    assert record == [8, 8, 3, 3, 1]  # sources are compacted once half of them have no rows
    assert state.active is not None and state.active[1].tolist() == rows[:1].tolist()
    assert result.step(state, history[:, -1]).state.active[0] is state.active[0]  # computed once, not at every step


@torch.no_grad()
def test_long_outputs_match_one_pass() -> None:
    """Check outputs that exceed the initial buffers, with rows that change their order."""
    result = sharp().eval()
    generator = torch.Generator().manual_seed(1)
    state, order = result.start(result.encode(SRC, LENGTHS)), torch.arange(3)
    history = torch.empty(3, 0, dtype=torch.long)
    for t in range(40):
        token = torch.randint(4, 11, (len(order),), generator=generator)
        history = torch.cat([history, token.unsqueeze(1)], 1)
        step = result.step(state, token)
        state = step.state
        scores = step.scores
        if t % 3 == 1:
            index = torch.randint(len(order), (4,), generator=generator)
            state, history, order, scores = state.select(index), history[index], order[index], scores[index]
        if t in (0, 7, 8, 9, 39):
            hidden = result(SRC[order], LENGTHS[order], history).hidden[:, -1]
            torch.testing.assert_close(scores, result.output.scores(hidden))


def test_parameters_have_xavier_initialization() -> None:
    result = model(d_model=64, heads=4, d_ff=128)
    assert result.src_embedding.weight[1:].std().item() == pytest.approx(1 / 8, rel=0.1)
    for name, parameter in result.named_parameters():
        if parameter.dim() == 2 and "embedding" not in name:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max().item() == pytest.approx(bound, rel=0.05), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name


def test_dropout_rates_are_set_per_module() -> None:
    result = model(dropout=0.4, attention_dropout=0.1)
    assert {a.dropout for kind in KINDS for a in attentions(result)[kind]} == {0.1}
    rates = {module.p for module in result.modules() if isinstance(module, nn.Dropout)}
    assert rates == {0.4} and result.dropout.p == 0.4
    assert {a.dropout for a in attentions(model(dropout=0.4, attention_dropout=None))["cross"]} == {0.4}
    assert {a.dropout for a in attentions(model(dropout=0.4))["cross"]} == {0.0}
    embedded = model(dropout=0.4)._embed(nn.Embedding.from_pretrained(torch.ones(3, 8)), torch.ones(90, 90).long(), 0)
    assert (embedded == 0).double().mean().item() == pytest.approx(0.4, abs=0.02)


def test_float32_and_autocast_match_float64() -> None:
    result = model(dropout=0.0)
    exact = copy.deepcopy(result).double()(SRC, LENGTHS, TGT).hidden
    torch.testing.assert_close(result(SRC, LENGTHS, TGT).hidden.double(), exact, atol=1e-5, rtol=0)
    with torch.autocast("cpu", torch.bfloat16):
        state = result.start(result.encode(SRC, LENGTHS))
        assert result.step(state, TGT[:, 0]).scores.shape == (3, 11)
        rough = result(SRC, LENGTHS, TGT).hidden
    torch.testing.assert_close(rough.double(), exact, atol=0.1, rtol=0)


@pytest.mark.slow
def test_several_learned_attentions_compile_with_dynamic_shapes() -> None:
    """Check that the compiler does not trace backward passes of the mappings: it fails on the second one."""
    model = TransformerSeq2Seq(12, 12, d_model=8, heads=2, layers=1, d_ff=8, dropout=0.0, attention="learned")
    src, lengths, tgt = torch.randint(4, 12, (2, 5)), torch.tensor([5, 3]), torch.randint(4, 12, (2, 4))

    def loss() -> torch.Tensor:
        return model.output.loss(model(src, lengths, tgt).hidden, tgt, reduction="sum")

    expected = torch.autograd.grad(loss(), list(model.parameters()))
    compiled = torch.compile(loss, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(), list(model.parameters())), expected, atol=1e-5, rtol=1e-4
    )
