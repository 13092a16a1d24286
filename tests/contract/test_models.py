"""Properties of every model, with any map, that search, scoring, training and run folders rely on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tsallis
from pairs import every_pair
from tsallis.models import Memory, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.models.protocol import join
from tsallis.search import beam_search, exhaustive

SRC, TGT = 13, 11
FORBIDDEN = (0, 1, 3)
ATTENTIONS = [("softmax", 1.0), ("sparsemax", 2.0), ("entmax", 1.5), ("entmax", 1.3)]
OUTPUTS = [("softmax", 1.0), ("sparsemax", 2.0), ("entmax", 1.5), ("entmax", 1.3), ("alpha_relu", 1.5)]

Build = Callable[..., Any]


def rnn(**arguments: Any) -> RNNSeq2Seq:
    return RNNSeq2Seq(SRC, TGT, **{"d_model": 8, "dropout": 0.3, "forbidden": FORBIDDEN, **arguments})


def transformer(**arguments: Any) -> TransformerSeq2Seq:
    sizes = {"d_model": 8, "heads": 2, "layers": 2, "d_ff": 12, "dropout": 0.3, "forbidden": FORBIDDEN}
    return TransformerSeq2Seq(SRC, TGT, **{**sizes, **arguments})


def transformer_with_one_matrix_for_all_embeddings(**arguments: Any) -> TransformerSeq2Seq:
    inputs = {"d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 12, "dropout": 0.3}
    return TransformerSeq2Seq(TGT, TGT, **{**inputs, "share": "all", "forbidden": FORBIDDEN, **arguments})


def variant(build: Build, name: str, **options: Any) -> Build:
    """Return a model builder with preset options and a name for test ids."""

    def made(**arguments: Any) -> Any:
        return build(**{**options, **arguments})

    made.__name__ = f"{build.__name__} {name}"
    return made


COPY = [-1, -1, -1, -1, *range(4, TGT), -1, -1]  # the last two source symbols stand for tags
FEATURES = [4, 7, 11]
RNNS: list[Build] = [
    rnn,
    variant(rnn, "with features apart that starts from zeros", features=FEATURES, initial_state="zeros"),
    variant(rnn, "that copies, of GRU cells", cell="gru", features=FEATURES, input_feeding=False, copy=COPY),
    variant(rnn, "that copies", copy=COPY),
    variant(rnn, "of GRU cells that copies", cell="gru", scorer="additive", input_feeding=False, copy=COPY),
    variant(rnn, "with hard attention", input_feeding=False, monotonic=0),
    variant(rnn, "of GRU cells with hard attention", cell="gru", scorer="additive", input_feeding=False, monotonic=1),
    variant(rnn, "of one layer that starts from zeros", layers=1, initial_state="zeros"),
    variant(rnn, "without input feeding", input_feeding=False),
    variant(rnn, "with one matrix for target and output", share="target"),
    variant(rnn, "of GRU cells", cell="gru", d_embedding=6),
    variant(rnn, "with an additive score", scorer="additive"),
    variant(rnn, "of GRU cells without input feeding", cell="gru", scorer="additive", input_feeding=False),
]
TRANSFORMERS: list[Build] = [
    transformer,
    variant(transformer, "normalised first", norm="pre", activation="gelu"),
    variant(transformer, "of one layer", layers=1, heads=4, checkpoint_activations=True),
    variant(
        transformer, "with learned alphas", encoder_attention="learned", decoder_attention="learned", tie_alphas="layer"
    ),
    variant(transformer, "with slopes and a length scale", heads=1, positions="alibi", length_scale="input"),
    variant(transformer, "with rotary positions", layers=1, positions="rope", length_scale="head"),
    transformer_with_one_matrix_for_all_embeddings,
    variant(transformer, "that copies", heads=1, copy=COPY),
    variant(transformer, "with features apart", heads=1, norm="pre", features=FEATURES),
]
MODELS = RNNS + TRANSFORMERS


def named(part: Any) -> str:
    """Return the part of a test id that stands for a model or a map."""
    return getattr(part, "__name__", str(part))


every_model = pytest.mark.parametrize("build", MODELS, ids=named)
every_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
every_pair_of_parts = every_pair(named, build=MODELS, attention=ATTENTIONS, output=OUTPUTS)
every_output = pytest.mark.parametrize("output", OUTPUTS, ids=str)


def sharp(build: Build, attention: tuple[str, float] = ("entmax", 1.5), output: tuple[str, float] = ("entmax", 1.5)):
    """Create a float64 model with parameters large enough for sparse attention and sparse outputs."""
    model = build(attention=attention[0], attention_alpha=attention[1], output=output[0], output_alpha=output[1])
    with torch.no_grad():
        if isinstance(model, RNNSeq2Seq):
            for parameter in model.parameters():
                parameter.mul_(25)
        else:
            for name, parameter in model.named_parameters():
                parameter.mul_(8 if name.endswith(("in_proj_weight", "embedding.weight", "projection.weight")) else 1)
                if name.endswith("bias") and "alpha" not in name:
                    parameter.normal_()
    return model.double().eval()


LENGTHS = torch.tensor([4, 6, 1, 5])
IDS = torch.randint(4, TGT, (4, 6), generator=torch.Generator().manual_seed(3))
IDS[torch.arange(6) >= LENGTHS.unsqueeze(1)] = 0
TARGETS = torch.randint(4, TGT, (4, 5), generator=torch.Generator().manual_seed(4))
TARGETS[:, 0] = 1


def walk(model: Any, src: Tensor, lengths: Tensor, tgt: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and attention of all steps, with one call per step."""
    state = model.start(model.encode(src, lengths))
    scores, attention = [], []
    for token in tgt.unbind(1):
        step = model.step(state, token)
        state = step.state
        scores.append(step.scores)
        attention.append(step.attention)
    return torch.stack(scores, 1), torch.stack(attention, 1)


@every_pair_of_parts
def test_forward_matches_single_steps(build: Build, attention: Any, output: Any) -> None:
    model = sharp(build, attention, output)
    decoded = model(IDS, LENGTHS, TARGETS, need_attention=True)
    scores, weights = walk(model, IDS, LENGTHS, TARGETS)
    assert decoded.hidden.shape == (4, 5, model.output.d_model)
    assert decoded.attention.shape == (4, 5, 6) and scores.shape == (4, 5, TGT)
    torch.testing.assert_close(model.output.scores(decoded.hidden), scores, atol=1e-10, rtol=0)
    torch.testing.assert_close(decoded.attention, weights, atol=1e-10, rtol=0)


@every_pair_of_parts
def test_every_pair_of_maps_gives_finite_gradients(build: Build, attention: Any, output: Any) -> None:
    model = build(attention=attention[0], attention_alpha=attention[1], output=output[0], output_alpha=output[1])
    gold = TARGETS.roll(-1, 1)
    gold[1, 3:] = -100
    decoded = model(IDS, LENGTHS, TARGETS)
    loss = model.output.loss(decoded.hidden, gold, reduction="none")
    assert loss.shape == gold.shape and (loss[1, 3:] == 0).all() and (loss[0] > 0).all()
    loss.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.output.projection.weight.grad.abs().sum() > 0


@every_model
def test_gradients_reach_every_parameter(build: Build) -> None:
    # A Transformer whose attention sees only one position gets no gradient for the others: use soft attention.
    model = sharp(build, ("softmax", 1.0)).train() if build in RNNS else build(attention="softmax").double()
    model.output.loss(model(IDS, LENGTHS, TARGETS).hidden, TARGETS.roll(-1, 1), reduction="sum").backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        assert parameter.grad.isfinite().all(), name


@every_model
def test_forward_gradients_match_single_steps(build: Build) -> None:
    model = sharp(build)
    parameters = [p for _, p in model.named_parameters()]
    decoded = model(IDS, LENGTHS, TARGETS, need_attention=True)
    scores, weights = model.output.scores(decoded.hidden)[..., 4:], decoded.attention
    scores = scores.masked_fill(scores == -torch.inf, 0)
    by_scores, by_weights = torch.randn_like(scores), torch.randn_like(weights)
    result = torch.autograd.grad((scores * by_scores).sum() + (weights * by_weights).sum(), parameters)
    scores, weights = walk(model, IDS, LENGTHS, TARGETS)
    scores = scores[..., 4:].masked_fill(scores[..., 4:] == -torch.inf, 0)  # -inf if copying excludes a symbol
    expected = torch.autograd.grad((scores * by_scores).sum() + (weights * by_weights).sum(), parameters)
    torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-7)


@every_model
def test_padding_does_not_change_hidden_states(build: Build) -> None:
    model = sharp(build)
    decoded = model(IDS, LENGTHS, TARGETS, need_attention=True)
    wider = model(torch.cat([IDS, torch.zeros(4, 3, dtype=torch.long)], 1), LENGTHS, TARGETS, need_attention=True)
    torch.testing.assert_close(wider.hidden, decoded.hidden, atol=1e-12, rtol=0)
    torch.testing.assert_close(wider.attention[..., :6], decoded.attention, atol=1e-12, rtol=0)
    assert (wider.attention[..., 6:] == 0).all()
    # The tokens in the padding don't matter either.
    outside = torch.arange(6) >= LENGTHS.unsqueeze(1)
    torch.testing.assert_close(model(IDS.masked_fill(outside, 7), LENGTHS, TARGETS).hidden, decoded.hidden)
    for row in range(4):
        alone = model(IDS[row : row + 1, : LENGTHS[row]], LENGTHS[row : row + 1], TARGETS[row : row + 1])
        torch.testing.assert_close(alone.hidden[0], decoded.hidden[row], atol=1e-12, rtol=0)


@every_model
def test_later_target_symbols_do_not_affect_earlier_steps(build: Build) -> None:
    model = sharp(build)
    changed = TARGETS.clone()
    changed[:, 3:] = 9
    torch.testing.assert_close(model(IDS, LENGTHS, changed).hidden[:, :3], model(IDS, LENGTHS, TARGETS).hidden[:, :3])
    assert not torch.allclose(model(IDS, LENGTHS, changed).hidden[:, 3:], model(IDS, LENGTHS, TARGETS).hidden[:, 3:])


@every_model
@every_attention
def test_attention_is_zero_on_padding(build: Build, attention: Any) -> None:
    weights = sharp(build, attention, ("softmax", 1.0))(IDS, LENGTHS, TARGETS, need_attention=True).attention
    inside = torch.arange(6) < LENGTHS.unsqueeze(1)
    assert (weights.movedim(1, 0)[:, ~inside] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 5, dtype=torch.float64))
    assert (weights[2, :, 0] == 1).all()
    sparse = (weights.movedim(1, 0)[:, inside] == 0).any().item()
    assert sparse == (attention[0] != "softmax")


@every_model
@every_output
def test_forbidden_symbols_are_never_in_the_support(build: Build, output: Any) -> None:
    model = sharp(build, output=output)
    scores, _ = walk(model, IDS, LENGTHS, TARGETS)
    assert (scores[..., FORBIDDEN] == -torch.inf).all()
    assert (model.output.probs(scores)[..., FORBIDDEN] == 0).all()
    assert (model.output.log_probs(scores)[..., FORBIDDEN] == -torch.inf).all()
    allowed = [i for i in range(TGT) if i not in FORBIDDEN]
    mixes = "copies" in build.__name__ or "hard" in build.__name__
    assert mixes or scores[..., allowed].isfinite().all()


@every_model
def test_states_can_be_selected_and_joined(build: Build) -> None:
    model = sharp(build)
    token = torch.tensor([1, 1, 1, 1])
    state = model.step(model.start(model.encode(IDS, LENGTHS)), token).state
    index = torch.tensor([3, 0, 0])  # reordered, repeated, dropped
    following = torch.tensor([5, 6, 7, 8])
    whole, selected = model.step(state, following), model.step(state.select(index), following[index])
    torch.testing.assert_close(selected.scores, whole.scores[index])
    torch.testing.assert_close(selected.attention, whole.attention[index])
    again = model.step(join([state.select(index[:1]), state.select(index[1:])]), following[index])
    torch.testing.assert_close(again.scores, selected.scores)
    torch.testing.assert_close(model.step(state, following).scores, whole.scores)  # a step leaves its state unchanged


@every_model
def test_states_of_different_lengths_can_be_joined(build: Build) -> None:
    model = sharp(build)
    states = [model.start(model.encode(IDS, LENGTHS))]
    for token in TARGETS.unbind(1):
        states.append(model.step(states[-1], token).state)
    rows = [(4, 1), (1, 3), (0, 0), (4, 2), (2, 1)]  # tokens read, and the source
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            state = join([states[steps].select(torch.tensor([row])) for steps, row in rows])
            for _ in range(2):
                token = torch.tensor([5, 6, 7, 8, 9])
                result = model.step(state, token)
                for i in range(5):
                    alone = model.step(state.select(torch.tensor([i])), token[i : i + 1])
                    torch.testing.assert_close(result.scores[i], alone.scores[0])
                    torch.testing.assert_close(result.attention[i], alone.attention[0])
                index = torch.tensor([4, 0, 1, 1, 3])
                again = join([result.state.select(index[:2]), result.state.select(index[2:])])
                expected = model.step(result.state, token).scores[index]
                torch.testing.assert_close(model.step(again, token[index]).scores, expected)
                state = again
    steps, row = rows[0]
    known = torch.cat([TARGETS[row : row + 1, :steps], torch.tensor([[5]])], 1)
    whole = model(IDS[row : row + 1], LENGTHS[row : row + 1], known)
    first = join([states[steps].select(torch.tensor([row])) for steps, row in rows])
    scores = model.step(first, torch.tensor([5, 6, 7, 8, 9])).scores
    torch.testing.assert_close(scores[0], model.output.scores(whole.hidden[0, -1]))


@every_model
@torch.no_grad()
def test_two_continuations_of_a_state_are_independent(build: Build) -> None:
    model = sharp(build)
    state = model.start(model.encode(IDS, LENGTHS))
    for token in TARGETS[:, :3].unbind(1):
        state = model.step(state, token).state
    ways = [torch.full((4,), symbol) for symbol in (5, 6)]
    apart = [model.step(model.step(state, way).state, way).scores for way in ways]
    one, other = (model.step(state, way).state for way in ways)
    torch.testing.assert_close(model.step(one, ways[0]).scores, apart[0])
    torch.testing.assert_close(model.step(other, ways[1]).scores, apart[1])
    assert not apart[0].equal(apart[1])


@every_model
@every_output
def test_wide_beam_search_matches_exhaustive_search(build: Build, output: Any) -> None:
    model = sharp(build, output=output)
    with torch.no_grad():
        model.output.projection.weight.mul_(2)
    options = {"max_length": 2}
    wide = beam_search(model, IDS, LENGTHS, beam_size=100, **options)
    for result, all_of_them in zip(wide, exhaustive(model, IDS, LENGTHS, **options), strict=True):
        assert result.certificate.kind == all_of_them.certificate.kind
        assert {h.tokens for h in result.hypotheses} == {h.tokens for h in all_of_them.hypotheses}
        probs = {h.tokens: h.log_prob for h in all_of_them.hypotheses}
        for hypothesis in result.hypotheses:
            assert hypothesis.log_prob == pytest.approx(probs[hypothesis.tokens], abs=1e-9)


@every_model
def test_num_attended_counts_attended_positions(build: Build) -> None:
    model = sharp(build)
    decoded = model(IDS, LENGTHS, TARGETS, need_attention=True)
    num_attended = model.num_attended(decoded)
    assert num_attended.shape == (4, 5) and (num_attended[2] == 1).all()
    assert (num_attended >= 1).all() and (num_attended <= LENGTHS.unsqueeze(1)).all() and num_attended.max() > 1
    if isinstance(model, RNNSeq2Seq):
        assert num_attended.equal((decoded.attention > 0).sum(-1).float())


@every_model
def test_shared_parameters_can_be_saved_once(build: Build) -> None:
    model, again = build(), build()
    shared = model.shared_parameters()
    state = model.state_dict()
    saved = {name: value for name, value in state.items() if name not in shared}
    assert len({value.data_ptr() for value in saved.values()}) == len(saved)
    assert all(state[alias].data_ptr() == saved[name].data_ptr() for alias, name in shared.items())
    assert bool(shared) == ("one matrix" in build.__name__.replace("_", " "))
    again.load_state_dict(saved | {alias: saved[name] for alias, name in shared.items()})
    assert all(value.equal(state[name]) for name, value in again.state_dict().items())


@every_model
def test_memories_can_be_selected_by_row(build: Build) -> None:
    model = sharp(build)
    index, token = torch.tensor([1, 1, 2]), torch.tensor([1, 1, 1])
    memory = model.encode(IDS, LENGTHS)
    assert isinstance(memory, Memory) and memory.mask.equal(torch.arange(6) < LENGTHS.unsqueeze(1))
    selected = model.step(model.start(memory.select(index)), token)
    torch.testing.assert_close(selected.scores, model.step(model.start(memory), torch.ones(4).long()).scores[index])


@every_model
def test_arguments_rebuild_the_model(build: Build) -> None:
    model = build(attention="sparsemax", output="alpha_relu", output_alpha=1.7, tau=-0.2)
    again = type(model)(**json.loads(json.dumps(model.arguments)))
    again.load_state_dict(model.state_dict())
    inputs, rebuilt = (m.eval()(IDS, LENGTHS, TARGETS, need_attention=True) for m in (model, again))
    assert rebuilt.hidden.equal(inputs.hidden) and rebuilt.attention.equal(inputs.attention)
    assert again.arguments == model.arguments
    scores = model.output(inputs.hidden)
    assert again.output.probs(again.output(rebuilt.hidden)).equal(model.output.probs(scores))


@every_model
def test_dropout_is_seeded_and_disabled_in_eval_mode(build: Build) -> None:
    model = build()
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(IDS, LENGTHS, TARGETS).hidden)
    assert runs[0].equal(runs[1]) and not runs[0].equal(runs[2])
    model.eval()
    assert model(IDS, LENGTHS, TARGETS).hidden.equal(model(IDS, LENGTHS, TARGETS).hidden)


@every_model
def test_padding_embeddings_stay_zero(build: Build) -> None:
    model = build()
    tgt = TARGETS.clone()
    tgt[0, 3:] = 0
    model(IDS, LENGTHS, tgt).hidden.sum().backward()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    assert tables
    for table in tables:
        assert (table.weight[0] == 0).all() and (table.weight.grad[0] == 0).all()


@every_model
@pytest.mark.parametrize("lengths", [[4, 7, 1, 5], [4, 6, 0, 5]], ids=str)
def test_invalid_source_lengths_raise(build: Build, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"src_lengths must be from 1 to 6.*" + str(lengths)[1:-1]):
        build().encode(IDS, torch.tensor(lengths))


@pytest.mark.parametrize("positions", ["sinusoids", "rope"])
def test_states_of_inference_mode_continue_without_gradients(positions: str) -> None:
    model = TransformerSeq2Seq(20, 15, d_model=8, heads=2, layers=1, d_ff=8, positions=positions).eval()
    src, lengths, token = torch.randint(4, 20, (2, 4)), torch.tensor([4, 2]), torch.tensor([5, 6])
    with torch.inference_mode(), tsallis.backend("eager"):
        state = model.step(model.start(model.encode(src, lengths)), token).state
    with torch.no_grad(), tsallis.backend("eager"):
        expected = model.step(model.start(model.encode(src, lengths)), token).state
        torch.testing.assert_close(model.step(state, token).scores, model.step(expected, token).scores)
