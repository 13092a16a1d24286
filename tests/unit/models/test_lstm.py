"""Tests specific to LSTM models: the decoder's initial state, input feeding, dropout and initialization."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tsallis.models import RNNSeq2Seq
from tsallis.search import beam_search


def model(**arguments) -> RNNSeq2Seq:
    return RNNSeq2Seq(13, 11, **{"d_model": 8, **arguments})


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_batched_encoder_matches_single_sentences(cell: str) -> None:
    rnn = model(cell=cell, d_embedding=6).double().eval()
    src, lengths = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]]), torch.tensor([4, 2])
    memory = rnn.encode(src, lengths)
    for row, n in enumerate(lengths.tolist()):
        states, last = rnn.encoder(rnn.src_embedding(src[row : row + 1, :n]))
        parts = last if cell == "lstm" else (last,)  # a GRU has no cell state
        assert len(memory.summary) == 2 * len(parts)
        torch.testing.assert_close(memory.states[row, :n], states[0])
        assert (memory.states[row, n:] == 0).all()
        for layer in range(2):
            # The last state of the forward direction is at the end, that of the backward direction at the start.
            for number, part in enumerate(parts):
                expected = part[2 * layer : 2 * layer + 2].flatten()
                torch.testing.assert_close(memory.summary[2 * number + layer][row], expected)
        torch.testing.assert_close(memory.summary[1][row], torch.cat([states[0, -1, :4], states[0, 0, 4:]]))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("d_embedding", [None, 6])
def test_step_matches_explicit_computation(cell: str, d_embedding: int | None) -> None:
    rnn = model(cell=cell, d_embedding=d_embedding).double().eval()
    src, lengths = torch.tensor([[5, 6, 7], [9, 4, 0]]), torch.tensor([3, 2])
    state = rnn.step(rnn.start(rnn.encode(src, lengths)), torch.tensor([1, 1])).state
    token = torch.tensor([7, 8])
    result = rnn.step(state, token)
    x = torch.cat([rnn.tgt_embedding(token), state.feed], 1)
    for i in range(2):
        weights = [getattr(rnn.decoder, f"{name}_l{i}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        if cell == "gru":
            x = torch.gru_cell(x, state.hidden[i], *weights)
        else:
            x, c = torch.lstm_cell(x, (state.hidden[i], state.cell[i]), *weights)
            torch.testing.assert_close(result.state.cell[i], c)
        torch.testing.assert_close(result.state.hidden[i], x)
    assert len(result.state.cell) == (2 if cell == "lstm" else 0)
    context, attention = rnn.attention(x, state.memory.states, state.memory.mask)
    mixed = torch.tanh(rnn.combine(torch.cat([context, x], 1)))
    torch.testing.assert_close(result.attention, attention)
    torch.testing.assert_close(result.state.feed, mixed)
    torch.testing.assert_close(result.scores, rnn.output(mixed))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("input_feeding", [True, False])
def test_autocast_gives_finite_gradients(cell: str, input_feeding: bool) -> None:
    rnn = model(cell=cell, layers=2, input_feeding=input_feeding)
    src, lengths, tgt = torch.tensor([[4, 5, 6], [5, 4, 0]]), torch.tensor([3, 2]), torch.tensor([[1, 4], [1, 5]])
    with torch.autocast("cpu", torch.bfloat16):
        hidden = rnn(src, lengths, tgt).hidden
    hidden.float().square().sum().backward()
    below = [p for name, p in rnn.named_parameters() if not name.startswith("output")]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in below)


@pytest.mark.parametrize("scorer", ["bilinear", "additive"])
def test_continuous_attention_supports_both_scorers(scorer: str) -> None:
    rnn = model(density="truncated_parabola", attention="softmax", num_basis=6, scorer=scorer).eval()
    src, lengths, tgt = torch.tensor([[5, 6, 7], [9, 4, 0]]), torch.tensor([3, 2]), torch.randint(4, 11, (2, 4))
    decoded = rnn(src, lengths, tgt)
    density = rnn.densities(src, lengths, tgt)
    assert density.mean.shape[:3] == (2, 1, 4) and (decoded.attention[1, :, 2] == 0).all()
    assert ("attention.score.weight" in rnn.state_dict()) == (scorer == "additive")


@pytest.mark.parametrize("input_feeding", [True, False])
def test_input_feeding_changes_scores_only_if_enabled(input_feeding: bool) -> None:
    rnn = model(input_feeding=input_feeding).eval()
    assert rnn.decoder.input_size == (16 if input_feeding else 8)
    state = rnn.start(rnn.encode(torch.tensor([[5, 6]]), torch.tensor([2])))
    assert (state.feed == 0).all()
    before = rnn.step(state, torch.tensor([1])).scores
    fed = type(state)(state.memory, state.keys, state.hidden, state.cell, torch.ones(1, 8))
    assert before.equal(rnn.step(fed, torch.tensor([1])).scores) == (not input_feeding)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_decoder_can_start_from_zeros(cell: str) -> None:
    """Check that, starting from zeros, scores depend on the source only through attention."""
    rnn = model(cell=cell, initial_state="zeros").eval()
    state = rnn.start(rnn.encode(torch.tensor([[5, 6], [7, 4]]), torch.tensor([2, 2])))
    assert all((x == 0).all() for x in (*state.hidden, *state.cell))
    states = torch.zeros_like(state.memory.states)
    blind = replace(state, memory=replace(state.memory, states=states), keys=rnn.attention.keys(states))
    scores = rnn.step(blind, torch.tensor([1, 1])).scores
    assert scores[0].equal(scores[1])
    with pytest.raises(ValueError, match="initial_state must be one of encoder, zeros, got 'ones'"):
        model(initial_state="ones")


def test_dropout_is_applied_between_layers_and_to_the_output() -> None:
    """Check that after a dropout mask of zeros, later values do not depend on earlier ones."""
    rnn = model(dropout=0.5)
    state = rnn.start(rnn.eval().encode(torch.tensor([[5, 6]]), torch.tensor([2])))
    by_token, layers = rnn._decoder_weights()
    gates = rnn._token_gates(torch.tensor([7]), by_token, layers[0])
    nothing, everything = torch.zeros(1, 1, 8), torch.ones(1, 1, 8)
    cut = rnn._advance(state, gates, layers, nothing, None)[0]
    other = rnn._advance(state, gates + 1, layers, nothing, None)[0]
    assert not cut.hidden[0].equal(other.hidden[0]) and cut.hidden[1].equal(other.hidden[1])
    whole = rnn._advance(state, gates, layers, everything, None)[0]
    assert not whole.hidden[1].equal(rnn._advance(state, gates + 1, layers, everything, None)[0].hidden[1])
    assert (rnn._advance(state, gates, layers, everything, nothing[0])[0].feed == 0).all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_initial_parameters_are_small_and_padding_is_zero(cell: str) -> None:
    rnn = model(d_model=64, cell=cell)
    for name, parameter in rnn.named_parameters():
        begins = parameter.detach().clone()
        if "bias_ih" in name and cell == "lstm":
            begins.chunk(4)[1].sub_(1)  # the biases of the forget gates start around 1
        assert begins.abs().max() <= 0.1, name
        if begins.numel() > 100:
            assert begins.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1), name
    assert (rnn.src_embedding.weight[0] == 0).all() and (rnn.tgt_embedding.weight[0] == 0).all()


def test_dropout_is_applied_to_output_layer_inputs() -> None:
    for input_feeding in (True, False):
        rnn = model(dropout=0.3, input_feeding=input_feeding)
        hidden = rnn(torch.tensor([[5, 6, 7]]), torch.tensor([3]), torch.randint(4, 11, (1, 50))).hidden
        assert (hidden == 0).double().mean().item() == pytest.approx(0.3, abs=0.1)


class Additive(nn.Module):
    """Additive attention of Bahdanau et al. 2015, with the score `v . tanh(W h_j + U s)`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.by_memory, self.by_query = nn.Linear(size, 5, bias=False), nn.Linear(size, 5)
        self.score = nn.Linear(5, 1, bias=False)
        self.read = 0

    def keys(self, memory: Tensor) -> Tensor:
        self.read += 1
        return self.by_memory(memory)

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        steps = query if query.dim() == 3 else query.unsqueeze(1)
        scores = self.score(torch.tanh(keys.unsqueeze(1) + self.by_query(steps).unsqueeze(2))).squeeze(3)
        weights = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
        context = weights @ memory
        return (context, weights) if query.dim() == 3 else (context.squeeze(1), weights.squeeze(1))


@pytest.mark.parametrize("input_feeding", [True, False])
def test_attention_module_can_be_replaced(input_feeding: bool) -> None:
    rnn = model(input_feeding=input_feeding, dropout=0.0)
    src, lengths, tgt = torch.tensor([[5, 6, 7], [9, 4, 0]]), torch.tensor([3, 2]), torch.randint(4, 11, (2, 4))
    before = rnn.double()(src, lengths, tgt).hidden
    rnn.attention = Additive(8)
    rnn.double()
    decoded = rnn(src, lengths, tgt)
    assert rnn.attention.read == 1 and not decoded.hidden.equal(before)
    assert (decoded.attention[1, :, 2] == 0).all() and rnn.num_attended(decoded).tolist() == [[3] * 4, [2] * 4]
    state = rnn.start(rnn.encode(src, lengths)).select(torch.tensor([1, 0, 1]))
    for t in range(4):
        step = rnn.step(state, tgt[[1, 0, 1], t])
        state = step.state
        torch.testing.assert_close(step.scores, rnn.output.scores(decoded.hidden[[1, 0, 1], t]))
        torch.testing.assert_close(step.attention, decoded.attention[[1, 0, 1], t])
    assert rnn.attention.read == 2
    decoded.hidden.square().sum().backward()
    assert all((p.grad != 0).any() for p in rnn.attention.parameters())
    assert any("attention.score" in name for name in rnn.state_dict())
    assert len(beam_search(rnn, src, lengths, max_length=3)) == 2
