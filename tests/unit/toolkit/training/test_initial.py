"""Initial parameters from another run or from word vectors, and the messages about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from small_run import DEV, SETTINGS, SRC, TGT, TRAIN, Killed, at, changed, kill
from tsallis.errors import InputError
from tsallis.models import LabelDecoder, RNNSeq2Seq, TransformerSeq2Seq
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data.word_vectors import WordVectors
from tsallis.toolkit.training import Run, Trainer
from tsallis.toolkit.training.initial import Start, describe_start, load_start, set_embeddings, take_parameters

OLD = Vocabulary([*"abcdef"]), Vocabulary([*"xyz"])
NEW = {"src": Vocabulary([*"gfba"]), "tgt": Vocabulary([*"xyz"])}
SAME = {"src": OLD[0], "tgt": OLD[1]}


def rnn(vocabularies: Any = OLD, seed: int = 0, **arguments: Any) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    src, tgt = vocabularies
    return RNNSeq2Seq(len(src), len(tgt), **{"d_model": 8, "layers": 2, **arguments})


def run(model: Any) -> Run:
    return Run(Path("runs/source"), model, *OLD, {"task": "strings"}, {"step": 7})


def test_symbol_parameters_are_copied_by_spelling() -> None:
    source, model = rnn(seed=1), rnn((NEW["src"], NEW["tgt"]), seed=2)
    before = model.src_embedding.weight.detach().clone()
    facts = take_parameters(model, run(source), NEW)
    assert facts["symbols"] == {
        "output.projection.bias": [7, 7],
        "output.projection.weight": [7, 7],
        "src_embedding.weight": [7, 8],
        "tgt_embedding.weight": [7, 7],
    }
    theirs = source.src_embedding.weight
    for symbol in "fba":
        (own,), (other,) = NEW["src"].encode(symbol), OLD[0].encode(symbol)
        assert model.src_embedding.weight[own].equal(theirs[other])
    assert model.src_embedding.weight[:4].equal(theirs[:4]) and model.src_embedding.weight[4].equal(before[4])
    assert facts["random"] == facts["unused"] == []
    for name, value in model.state_dict().items():
        assert name == "src_embedding.weight" or value.equal(source.state_dict()[name]), name


def test_source_run_may_differ_in_layers_maps_and_sharing() -> None:
    source = rnn(seed=1)
    model = rnn(seed=2, layers=3, attention="softmax", output="alpha_relu", dropout=0.0, share="target")
    facts = take_parameters(model, run(source), SAME)
    assert {name.split(".")[0] for name in facts["random"]} == {"encoder", "decoder"}
    assert all("_l2" in name for name in facts["random"]) and facts["unused"] == []
    assert model.output.weight.equal(source.tgt_embedding.weight)
    lines = describe_start({"run": {"folder": "r", "checkpoint": "best", "step": 7, **facts}})
    assert lines[0].startswith("Starts from r (best, step 7): ") and "src_embedding.weight of 10 of 10" in lines[0]
    assert lines[1].startswith("Missing, initialized at random: encoder.") and lines[1].endswith(" more")
    less = rnn(seed=3, layers=1)
    facts = take_parameters(less, run(model), SAME)
    assert facts["random"] == [] and all("_l1" in name or "_l2" in name for name in facts["unused"])
    assert less.output.weight.equal(less.tgt_embedding.weight)  # the source has one matrix for both
    lines = describe_start({"run": {"folder": "r", "checkpoint": "best", "step": 7, **facts}})
    assert len(lines) == 2 and lines[1].startswith("Not used: ")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: rnn(d_model=10), r"runs/source: .* must have shape .* differ: d_model \(8 in the other run\)$"),
        (lambda: TransformerSeq2Seq(10, 7, d_model=8, heads=2, layers=1), "class TransformerSeq2Seq, found RNNSeq2Seq"),
        (lambda: rnn(input_feeding=False), r"\[32, 8\], found \[32, 16\]; .* differ: input_feeding \(True in .*\)$"),
    ],
    ids=["sizes", "class", "input feeding"],
)
def test_incompatible_models_are_rejected_and_unchanged(model: Any, words: str) -> None:
    own = model()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    with pytest.raises(InputError, match=words):
        take_parameters(own, run(rnn(seed=9)), SAME)
    assert all(value.equal(before[name]) for name, value in own.state_dict().items())


def test_label_parameters_are_copied_by_name() -> None:
    source, model = (LabelDecoder(10, 4 + n, d_model=8, attention="discrete") for n in (3, 2))
    old = Run(Path("r"), source, *OLD, {"task": "classification"}, {"step": 7})
    facts = take_parameters(model, old, {"src": OLD[0], "tgt": Vocabulary(["z", "new"])})
    assert facts["symbols"]["classifier.output.projection.bias"] == [1, 2]
    ours, theirs = model.classifier.output.projection.weight, source.classifier.output.projection.weight
    assert ours[0].equal(theirs[2]) and not ours[1].equal(theirs[1])


def test_load_start_restores_initial_parameters(tmp_path: Path) -> None:
    model, other = rnn(share="target"), rnn(seed=4, share="target")
    start = Start(model, {"run": {"folder": "r"}})
    blob = start.blob()
    assert blob is not None and Start(model).blob() is None
    (tmp_path / "start.safetensors").write_bytes(blob)
    assert load_start(other, tmp_path) == start.facts
    assert all(value.equal(other.state_dict()[name]) for name, value in model.state_dict().items())
    with pytest.raises(InputError, match=r"start\.safetensors: belongs to another model; restore the file"):
        load_start(rnn(), tmp_path)
    (tmp_path / "start.safetensors").write_bytes(blob[:-5])
    with pytest.raises(InputError, match="not a file of initial parameters; restore the file"):
        load_start(other, tmp_path)


def test_vectors_become_embeddings() -> None:
    model = rnn()
    before = model.src_embedding.weight.detach().clone()
    vectors = WordVectors((4, 6), torch.arange(16.0).reshape(2, 8))
    set_embeddings(model, "src", vectors, "here")
    assert model.src_embedding.weight[[4, 6]].equal(vectors.matrix)
    others = [0, 1, 2, 3, 5, 7, 8, 9]
    assert model.src_embedding.weight[others].equal(before[others])
    with pytest.raises(InputError, match="here: expected vectors of 8 numbers, found 3"):
        set_embeddings(model, "tgt", WordVectors((4,), torch.zeros(1, 3)), "here")
    with pytest.raises(InputError, match="here: the model has no "):
        set_embeddings(LabelDecoder(10, 6, d_model=8), "tgt", vectors, "here")


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_frozen_embeddings_do_not_change(tmp_path: Path, decay: float) -> None:
    """Frozen embeddings do not change, even if the run resumes from a checkpoint."""
    settings = changed(SETTINGS, epochs=1, weight_decay=decay, checkpoint_every=1)
    trained = []
    for folder, limits in (("whole", [-1]), ("parts", [2, -1])):
        for limit in limits:
            model = rnn((SRC, TGT), layers=1)
            model.src_embedding.weight.requires_grad_(False)
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            try:
                Trainer(model, TRAIN, DEV, tmp_path / folder, settings, watch=at(limit, kill)).run()
            except Killed:
                continue
            trained.append(model.state_dict())
        assert [name for name, p in model.named_parameters() if p.equal(before[name])] == ["src_embedding.weight"]
    assert all(value.equal(trained[1][name]) for name, value in trained[0].items())
