"""Tests of distillation: stored distributions match a teacher's logits, and train a student in Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")  # before the imports that need it

import torch
import transformers as tf
from torch import Tensor

import tsallis
from tiny_transformers import SMALL, TEXT, VOCABULARY, build, fill
from tsallis import distillation
from tsallis.errors import InputError
from tsallis.huggingface import DistilledDataset, distill, lm_loss, trainer_loss
from tsallis.huggingface.text_batches import decoder_inputs, pad_rows

IDS = [torch.randint(3, VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (5, 3, 6, 2, 4)]
LABELS = [[-100, *ids[1:]] if len(ids) % 2 else ids for ids in IDS]  # models that shift never predict the first token
ROWS = [{"input_ids": ids, "labels": x, "text": "dropped by Trainer"} for ids, x in zip(IDS, LABELS, strict=True)]


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad rows at the end, and keep the input and label of the first position, like an instruction."""
    ids = pad_rows([row["input_ids"] for row in rows], 0)
    labels = pad_rows([row["labels"] for row in rows], -100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distillation, "PART_ROWS", 3)


def store(model: Any, folder: Path, rows: Any = ROWS, **options: Any) -> None:
    distill(model, rows, folder, collator=collate, batch_size=2, **options)


def targets(model: Any, batch: dict[str, Tensor], shift: bool, alpha: float = 1.5) -> tuple[Tensor, Tensor]:
    """Return the probabilities that predict the labels of a batch, and their mask."""
    labels = batch["labels"]
    with torch.no_grad():
        logits = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return tsallis.entmax(logits, alpha), labels != -100


@pytest.mark.parametrize("name", ["llama", "bert"])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_targets_match_teacher_probabilities(name: str, weight: float, tmp_path: Path) -> None:
    teacher, student, shift = build(name), build(name), name == "llama"
    with torch.no_grad():
        for x in student.parameters():
            x.mul_(1.5)
    store(teacher, tmp_path)
    data = DistilledDataset(ROWS, tmp_path, weight, collate)
    numbers = [3, 0, 4]
    batch, expected = data.collate([data[i] for i in numbers]), collate([ROWS[i] for i in numbers])
    assert {key: x for key, x in batch.items() if key != "labels"}.keys() == {"input_ids", "attention_mask"}
    assert torch.equal(batch["labels"] == -100, expected["labels"] == -100)
    probs, mask = targets(teacher, expected, shift)
    labels = expected["labels"][:, 1:] if shift else expected["labels"]
    gold = torch.nn.functional.one_hot(labels.clamp(min=0), VOCABULARY)
    logits = student(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    shifted = logits[:, :-1] if shift else logits
    dense = tsallis.entmax_loss(shifted[mask], (weight * probs + (1 - weight) * gold)[mask], 1.5)
    loss = trainer_loss(1.5, shift=shift, teacher=data.rows)
    torch.testing.assert_close(loss({"logits": logits}, batch["labels"]), dense, rtol=1e-5, atol=1e-5)
    half = loss({"logits": logits}, batch["labels"], num_items_in_batch=2 * int(mask.sum()))
    torch.testing.assert_close(half, dense / 2, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lm_loss(student, batch, 1.5, teacher=data.rows), dense, rtol=1e-5, atol=1e-5)


def test_top_k_stores_the_tail_of_a_softmax_classifier(tmp_path: Path) -> None:
    config = tf.BertConfig(**SMALL, **TEXT, num_labels=5)
    model = fill(lambda: tf.BertForSequenceClassification(config))
    rows = [{"input_ids": ids, "labels": i} for i, ids in enumerate(IDS)]

    def classes(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate([{**row, "labels": []} for row in rows])
        return {**batch, "labels": torch.tensor([row["labels"] for row in rows])}

    distill(model, rows, tmp_path, 1.0, collator=classes, top_k=2)
    data = DistilledDataset(rows, tmp_path, 1.0, classes)
    batch = classes(rows)
    with torch.no_grad():
        probs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.softmax(-1)
    torch.testing.assert_close(data.rows.tail, 1 - probs.topk(2).values.sum(-1))
    assert data.collate([data[i] for i in range(5)])["labels"].tolist() == [-101, -102, -103, -104, -105]


def test_trainer_loss_is_0_for_a_student_equal_to_its_teacher(tmp_path: Path) -> None:
    """Check that the loss of a student that equals its teacher is 0. Evaluation data keep their labels."""
    model = build("llama")
    store(model, tmp_path / "teacher")
    data = DistilledDataset(ROWS, tmp_path / "teacher", 1.0, collate)
    arguments = tf.TrainingArguments(
        str(tmp_path / "run"),
        max_steps=3,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=0.0,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
    )
    loss = trainer_loss(1.5, shift=True, teacher=data.rows)
    trainer = tf.Trainer(model, arguments, data.collate, data, ROWS, compute_loss_func=loss)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([0.0] * 3, abs=1e-5)
    plain = tf.Trainer(model, arguments, collate, None, ROWS, compute_loss_func=trainer_loss(1.5, shift=True))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-4)


def test_mismatched_teachers_data_and_labels_are_rejected(tmp_path: Path) -> None:
    model = build("llama")
    store(model, tmp_path)
    store(model, tmp_path)
    with pytest.raises(InputError, match="the same teachers, found others"):
        store(model, tmp_path, alpha=1.25)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(InputError, match="the same teachers, found others"):
        store(model, tmp_path)
    with pytest.raises(InputError, match="this training data, found others"):
        DistilledDataset(ROWS[::-1], tmp_path)
    data = DistilledDataset(ROWS, tmp_path, collator=lambda rows: {"labels": torch.tensor([[-100, 4]])})
    with pytest.raises(ValueError, match="expected 4 labels in the order of the rows, got 1 labels"):
        data.collate([data[0]])
    with pytest.raises(ValueError, match=r"weight must be from 0 to 1, got 1\.5"):
        DistilledDataset(ROWS, tmp_path, weight=1.5)
    for rows, message in (([], "at least one row, got none"), ([{"input_ids": [3]}], "found input_ids in row 0")):
        with pytest.raises(InputError, match=message):
            DistilledDataset(rows, tmp_path)

    def cut(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {**(batch := collate(rows)), "labels": batch["labels"][:, 1:]}

    with pytest.raises(ValueError, match=r"labels must have shape \[2, 5\], got \[2, 4\]"):
        distill(model, ROWS, tmp_path / "cut", collator=cut, batch_size=2)


@pytest.mark.parametrize(
    ("separator", "message"), [(-100, "2 to 2: expected 6 labels .* got 5"), (4, "0 to 1: expected 6 labels .* got 8")]
)
def test_collators_that_change_labels_are_rejected_before_files_are_written(
    separator: int, message: str, tmp_path: Path
) -> None:
    """Transformers' flattening collator replaces the first label of each row."""
    collator = tf.DataCollatorWithFlattening(separator_id=separator)
    with pytest.raises(ValueError, match=f"not change the labels of rows {message}"):
        distill(build("llama"), ROWS, tmp_path, collator=collator, batch_size=2)
    assert not [*tmp_path.iterdir()]


def test_padding_at_the_start_does_not_predict_the_first_label(tmp_path: Path) -> None:
    def collate_left(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {
            name: x.flip(1)
            for name, x in collate([{k: row[k][::-1] for k in ("input_ids", "labels")} for row in rows]).items()
        }

    model = build("llama")
    store(model, tmp_path / "right")
    distill(model, ROWS, tmp_path / "left", collator=collate_left, batch_size=3)
    right, left = (DistilledDataset(ROWS, tmp_path / name).rows for name in ("right", "left"))
    assert right.offsets.diff().tolist() == left.offsets.diff().tolist()
    torch.testing.assert_close(left.dense(VOCABULARY), right.dense(VOCABULARY))


def test_packed_rows_have_the_targets_of_padded_rows(tmp_path: Path) -> None:
    model = build("llama")
    rows = [{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in IDS]
    collator = tf.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    store(model, tmp_path / "padded", rows)
    distill(model, rows, tmp_path / "packed", collator=collator, batch_size=2)
    padded, packed = (DistilledDataset(rows, tmp_path / name, 0.5, collator) for name in ("padded", "packed"))
    torch.testing.assert_close(packed.rows.dense(VOCABULARY), padded.rows.dense(VOCABULARY))
    batch = packed.collate([packed[3], packed[0]])
    packed.collator = lambda rows: collator(rows[::-1])
    with pytest.raises(ValueError, match="expected 5 labels in the order of the rows"):
        packed.collate([packed[3], packed[0]])
    assert batch["labels"].tolist() == [[-100, -112, -100, -101, -102, -103, -104]]
    model.config.use_cache = False  # with a cache, Transformers does not separate packed rows
    loss = lm_loss(model, batch, 1.5, teacher=packed.rows)
    padded.collator = collate
    expected = padded.collate([padded[3], padded[0]])
    torch.testing.assert_close(loss, lm_loss(model, expected, 1.5, teacher=padded.rows))


def test_encoder_decoder_distillation_needs_decoder_input_ids(tmp_path: Path) -> None:
    model = build("t5")
    store(model, tmp_path / "t")
    data = DistilledDataset(ROWS, tmp_path / "t", 1.0, collate)
    batch = data.collate([data[i] for i in range(len(data))])
    with pytest.raises(ValueError, match="must have decoder_input_ids if labels are rows of a teacher"):
        lm_loss(model, batch, teacher=data.rows)
    batch["decoder_input_ids"] = decoder_inputs(model, collate(ROWS)["labels"])
    assert 0 <= lm_loss(model, batch, teacher=data.rows) < 1e-5  # the model is its own teacher


INVALID = [
    ({"top_k": 0}, "top_k must be at least 1, got 0"),
    ({"alpha": -1.0}, "alpha must"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_failed_calls_write_no_files(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        distill(build("llama"), ROWS, tmp_path / "out", collator=collate, **options)

    def broken(rows: list[dict[str, Any]]) -> Any:
        raise ValueError("no batch")

    with pytest.raises(ValueError, match="no batch"):
        distill(build("llama"), ROWS, tmp_path / "out", collator=broken)
    assert not (tmp_path / "out").exists()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="not empty and contains no distributions"):
        store(build("llama"), tmp_path)
    with pytest.raises(InputError, match=r"notes.txt: expected a folder, found a file"):
        store(build("llama"), tmp_path / "notes.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_damaged_and_missing_parts_raise_until_rebuilt(tmp_path: Path) -> None:
    model, part = build("llama"), tmp_path / "part-00000000.safetensors"
    store(model, tmp_path)
    whole, other = part.read_bytes(), (tmp_path / "part-00000003.safetensors").read_bytes()
    for damaged, message in ((whole[:50], "not a file of distributions"), (other, "expected the digest")):
        part.write_bytes(damaged)
        for act in (lambda: store(model, tmp_path), lambda: DistilledDataset(ROWS, tmp_path)):
            with pytest.raises(InputError, match=f"{message}.*remove the file and repeat"):
                act()
    part.unlink()
    with pytest.raises(InputError, match=r"can't be read.*repeat"):
        DistilledDataset(ROWS, tmp_path)
    store(model, tmp_path)
    assert part.read_bytes() == whole
    DistilledDataset(ROWS, tmp_path)


@pytest.mark.parametrize("kind", ["cpu", "disk", "one layer", "whole layers"])
def test_offloaded_teachers_store_the_same_files(kind: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build("llama")
    store(model, tmp_path / "loaded")
    if kind == "cpu":
        accelerate.cpu_offload(model, execution_device="cpu")
    elif kind == "whole layers":  # a hook of a layer loads the weights of its modules
        accelerate.cpu_offload(model, execution_device="cpu", preload_module_classes=["LlamaDecoderLayer"])
    else:
        part = model.model.layers[0] if kind == "one layer" else model
        accelerate.disk_offload(part, tmp_path / "weights", execution_device="cpu")
    store(model, tmp_path / "offloaded")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("loaded", "offloaded")
    )
    assert first == second


def test_teachers_without_weights_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.embed_tokens\.weight has no weights"):
        store(build("llama").to("meta"), tmp_path)


def test_quantized_teachers_resume(tmp_path: Path) -> None:
    def teacher() -> Any:
        return torch.ao.quantization.quantize_dynamic(build("llama"), {torch.nn.Linear})

    store(teacher(), tmp_path)
    part = tmp_path / "part-00000000.safetensors"
    content = part.read_bytes()
    part.unlink()
    store(teacher(), tmp_path)
    assert part.read_bytes() == content
    other = build("llama")
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    with pytest.raises(InputError, match="other"):
        store(torch.ao.quantization.quantize_dynamic(other, {torch.nn.Linear}), tmp_path)


def test_negative_indices_count_from_the_end(tmp_path: Path) -> None:
    store(build("llama"), tmp_path)
    data = DistilledDataset(ROWS, tmp_path, collator=collate)
    for index in range(-len(ROWS), 0):
        first, second = (data.collate([data[i]])["labels"] for i in (index, index + len(ROWS)))
        assert torch.equal(first, second)
    with pytest.raises(IndexError):
        data[len(ROWS)]


def test_invalid_trainer_loss_options_raise() -> None:
    rows = tsallis.SparseRows(torch.tensor([1]), torch.ones(1), torch.tensor([0, 1]))
    for options in ({"alpha": -1.0}, {"label_smoothing": 7.0}, {"label_smoothing": 0.1, "teacher": rows}):
        with pytest.raises(ValueError, match="must"):
            trainer_loss(**options)
    with pytest.raises(TypeError, match="alpha must"):
        trainer_loss("a")  # type: ignore[arg-type]
