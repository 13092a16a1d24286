"""Stored distributions of a teacher: written in parts, checked when read, and mixed with the references."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import small_run
from small_run import DEV, SRC, TGT, TRAIN, changed, contents
from tsallis import SparseRows, distillation
from tsallis.distillation import MANIFEST
from tsallis.errors import InputError
from tsallis.models import RNNSeq2Seq
from tsallis.models.batch import Batch, has_loss
from tsallis.search import Ensemble, SearchOptions, beam_search
from tsallis.symbols import IGNORE_INDEX, UNK
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.datasets.synthetic_corpus import synthetic_corpus
from tsallis.toolkit.training import Checkpoints, Trainer, teacher
from tsallis.toolkit.training.teacher import read_teacher, write_teacher

VOCABULARY, DIGESTS = TGT.fingerprint(), ["0" * 64]


def model(output: str = "entmax", seed: int = 1) -> RNNSeq2Seq:
    torch.manual_seed(seed)
    return RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, output=output, dropout=0.0)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "PART_ROWS", 12)
    monkeypatch.setattr(teacher, "BATCH_ROWS", 5)


def write(folder: Path, corpus: Corpus = TRAIN, seed: int = 1, **options: object) -> dict[str, Any]:
    return write_teacher(model(seed=seed), corpus, VOCABULARY, DIGESTS, folder, **options)  # type: ignore[arg-type]


def probs_of(net: Any, batch: Batch) -> Tensor:
    """Return the probabilities [positions, vocabulary] of a model, zero at positions without a loss."""
    with torch.no_grad():
        probs = net.output.probs(net.output.scores(net(batch.src, batch.src_lengths, batch.tgt_in).hidden))
    probs[~has_loss(batch.tgt_out)] = 0
    return probs.flatten(0, 1).float()


@pytest.mark.parametrize("members", [1, 2])
def test_stored_distributions_match_the_model(tmp_path: Path, members: int) -> None:
    models = [model(seed=seed) for seed in range(members)]
    one = models[0] if members == 1 else Ensemble(models)
    record = write_teacher(one, TRAIN, VOCABULARY, DIGESTS, tmp_path)
    found = read_teacher(tmp_path, TRAIN, VOCABULARY, 1.0)
    batch = TRAIN.batch([20, 3, 31])
    torch.testing.assert_close(found.targets(batch).dense(len(TGT)), probs_of(one, batch))
    assert record["entries"] == len(found.rows.indices)
    assert record["tokens"] == len(found.rows) == sum(len(row) + 1 for row in TRAIN.tgt)


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_targets_mix_teacher_and_reference(tmp_path: Path, weight: float) -> None:
    write(tmp_path)
    batch = TRAIN.batch([1, 7])
    batch.tgt_out[0, 1] = UNK  # an unknown symbol has no loss
    alone = read_teacher(tmp_path, TRAIN, VOCABULARY, 1.0).targets(batch).dense(len(TGT))
    mixed = read_teacher(tmp_path, TRAIN, VOCABULARY, weight).targets(batch)
    known = has_loss(batch.tgt_out).flatten()
    gold = torch.nn.functional.one_hot(batch.tgt_out.flatten().clamp(min=0), len(TGT)) * known.unsqueeze(1)
    torch.testing.assert_close(mixed.dense(len(TGT)), weight * alone + (1 - weight) * gold)
    assert mixed.offsets.diff()[~known].tolist() == [0] * int((~known).sum())


def test_a_killed_run_resumes_with_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    assert sorted(whole)[1:4] == [f"part-{n:08}.safetensors" for n in (0, 12, 24)]

    def kill(*columns: Any) -> dict[str, torch.Tensor]:
        if len([*(tmp_path / "killed").glob("part-*")]) == 2:
            raise small_run.Killed
        return distillation.part_columns(*columns)

    with monkeypatch.context() as patch, pytest.raises(small_run.Killed):
        patch.setattr(teacher, "part_columns", kill)
        write(tmp_path / "killed")
    with pytest.raises(InputError, match="the folder is unfinished; repeat the distillation"):
        read_teacher(tmp_path / "killed", TRAIN, VOCABULARY, 0.5)
    before = (tmp_path / "killed" / "part-00000000.safetensors").stat().st_mtime_ns
    write(tmp_path / "killed")
    assert contents(tmp_path / "killed") == whole
    assert (tmp_path / "killed" / "part-00000000.safetensors").stat().st_mtime_ns == before
    write(tmp_path / "killed")
    assert contents(tmp_path / "killed") == whole


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, blob: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill)
    with pytest.raises(InputError, match=f"/{MANIFEST}: can't be written: No space left on device"):
        write(tmp_path)
    assert not [*tmp_path.iterdir()]


def test_other_teachers_and_data_are_rejected(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match=f"{MANIFEST}: expected .* the same rows and data, found others"):
        write(tmp_path, DEV)
    with pytest.raises(InputError, match="the same teachers, found others"):
        write_teacher(model(), TRAIN, VOCABULARY, ["1" * 64], tmp_path)
    with pytest.raises(InputError, match="the same top_k, found others"):
        write(tmp_path, top_k=3)
    with pytest.raises(InputError, match="this training data, found others"):
        read_teacher(tmp_path, DEV, VOCABULARY, 0.5)
    with pytest.raises(InputError, match="this target vocabulary, found others"):
        read_teacher(tmp_path, TRAIN, SRC.fingerprint(), 0.5)
    with pytest.raises(InputError, match="alpha-ReLU"):
        write_teacher(model("alpha_relu"), TRAIN, VOCABULARY, DIGESTS, tmp_path / "relu")


def test_data_that_differ_in_every_epoch_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the same in every epoch"):
        write(tmp_path / "out", synthetic_corpus("copy", 3, [(6, 6)]))
    assert not (tmp_path / "out").exists()


def test_targets_are_aligned_with_positions_that_have_a_loss(tmp_path: Path) -> None:
    """Positions without a target may lie anywhere in a row."""
    write(tmp_path)
    found, batch = read_teacher(tmp_path, TRAIN, VOCABULARY, 1.0), TRAIN.batch([4])
    expected = found.targets(batch)
    out = torch.full((1, batch.tgt_out.shape[1] + 2), IGNORE_INDEX)
    out[0, 2:] = batch.tgt_out
    shifted = found.targets(replace(batch, tgt_out=out))
    assert torch.equal(shifted.dense(len(TGT))[2:], expected.dense(len(TGT)))


def test_damaged_parts_are_rejected(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / "part-00000012.safetensors"
    part = safetensors.torch.load_file(path)
    path.write_bytes(safetensors.torch.save({**part, "probs": part["probs"] * 2}))
    with pytest.raises(InputError, match=f"{path.name}: expected the digest"):
        read_teacher(tmp_path, TRAIN, VOCABULARY, 0.5)
    path.unlink()
    with pytest.raises(InputError, match=path.name):
        read_teacher(tmp_path, TRAIN, VOCABULARY, 0.5)
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=MANIFEST):
        read_teacher(tmp_path, TRAIN, VOCABULARY, 0.5)


def test_top_k_keeps_the_largest_probabilities_and_the_tail(tmp_path: Path) -> None:
    """The tail has the probability that `top_k` cuts off. The rest mixes with the references as usual."""
    softmax = model("softmax")
    write_teacher(softmax, TRAIN, VOCABULARY, DIGESTS, tmp_path, top_k=3)
    batch = TRAIN.batch([20, 3])
    with torch.no_grad():
        scores = softmax.output.scores(softmax(batch.src, batch.src_lengths, batch.tgt_in).hidden)
    largest = scores.softmax(-1).topk(3)
    expected = torch.zeros_like(scores).scatter(-1, largest.indices, largest.values)
    expected[~has_loss(batch.tgt_out)] = 0
    found = read_teacher(tmp_path, TRAIN, VOCABULARY, 1.0).targets(batch)
    torch.testing.assert_close(found.dense(len(TGT)), expected.flatten(0, 1))
    assert found.tail is not None
    known = has_loss(batch.tgt_out).flatten()
    torch.testing.assert_close(found.tail[known], 1 - expected.sum(-1).flatten()[known])
    mixed = read_teacher(tmp_path, TRAIN, VOCABULARY, 0.25).targets(batch)
    gold = torch.nn.functional.one_hot(batch.tgt_out.flatten().clamp(min=0), len(TGT)) * known.unsqueeze(1)
    torch.testing.assert_close(mixed.dense(len(TGT)), 0.25 * expected.flatten(0, 1) + 0.75 * gold)


def test_the_best_outputs_replace_the_references(tmp_path: Path) -> None:
    options = SearchOptions(beam_size=2, n_best=1)
    write(tmp_path, search=options)
    one, found = model(), read_teacher(tmp_path, TRAIN, VOCABULARY, 1.0)
    batch = TRAIN.batch(range(len(TRAIN)))
    best = [x.hypotheses[0].tokens for x in beam_search(one, batch.src, batch.src_lengths, beam_size=2, n_best=1)]
    assert [tuple(row) for row in found.corpus.tgt] == best != [tuple(row) for row in TRAIN.tgt]
    batch = found.corpus.batch([7, 2])
    torch.testing.assert_close(found.targets(batch).dense(len(TGT)), probs_of(one, batch))


def test_a_student_learns_from_its_teacher_and_resumes(tmp_path: Path) -> None:
    """The loss compares distributions, so it is zero if student and teacher are equal."""
    write(tmp_path / "teacher")
    distributions = read_teacher(tmp_path / "teacher", TRAIN, VOCABULARY, 1.0)
    settings = changed(small_run.SETTINGS, epochs=2, checkpoint_every=1)
    student = Trainer(model(), TRAIN, DEV, tmp_path / "same", settings, teacher=distributions)
    batch = TRAIN.batch([0, 1])
    assert student.engine._loss(batch, distributions.targets(batch)).item() == pytest.approx(0, abs=1e-4)
    runs = {}
    stopped = Trainer(model(seed=2), TRAIN, DEV, tmp_path / "stopped", settings, teacher=distributions)
    stopped.stop = lambda: stopped.position.step == 2
    stopped.run()
    assert stopped.stopped
    for name in ("whole", "stopped"):
        Trainer(model(seed=2), TRAIN, DEV, tmp_path / name, settings, teacher=distributions).run()
        runs[name] = Checkpoints(tmp_path / name / "checkpoints").load_model("last")
    assert all(torch.equal(runs["whole"][key], runs["stopped"][key]) for key in runs["whole"])
    with pytest.raises(InputError, match="the data has changed"):
        Trainer(model(seed=2), TRAIN, DEV, tmp_path / "whole", settings).run()


def test_one_hot_teacher_matches_training_without_teacher(tmp_path: Path) -> None:
    """With all probability on the references, training equals that without a teacher, up to rounding."""
    lengths = torch.tensor([len(row) + 1 for row in TRAIN.tgt])
    symbols = torch.cat([torch.tensor([*row, 2]) for row in TRAIN.tgt])
    rows = SparseRows(symbols, torch.ones(len(symbols)), torch.arange(len(symbols) + 1))
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    states = []
    for number, given in enumerate((None, teacher.Teacher(rows, starts, "", TRAIN))):
        run = Trainer(model(), TRAIN, DEV, tmp_path / str(number), small_run.SETTINGS, teacher=given)
        run.run()
        states.append(run.model.state_dict())
    torch.testing.assert_close(*states, rtol=1e-3, atol=1e-4)
