"""Store the distributions of a Transformers model, and read them as targets of a student in Trainer."""

from __future__ import annotations

import hashlib
import inspect
import io
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import default_data_collator

from tsallis.distillation import part_columns, read_distributions, write_distributions
from tsallis.errors import InputError, describe
from tsallis.functional import SparseRows, entmax
from tsallis.functional.rows import alpha_number, integer
from tsallis.huggingface.alphas import unwrap
from tsallis.huggingface.losses import FIRST_LABEL, shifts
from tsallis.huggingface.offloading import input_device, loaded
from tsallis.huggingface.text_batches import add_decoder_inputs
from tsallis.models.modes import eval_mode
from tsallis.symbols import IGNORE_INDEX

Collator = Callable[[list[Any]], Any]
INDEX = "label_ids"  # Trainer keeps this column although models do not accept it


def distill(
    model: Any,
    dataset: Any,
    folder: Path | str,
    alpha: float = 1.5,
    *,
    collator: Collator = default_data_collator,
    top_k: int | None = None,
    shift: bool | None = None,
    batch_size: int = 8,
) -> None:
    """Store the probabilities of a model for every label of a dataset except -100.

    The folder has the format of `tsallis distill`. If the function is interrupted, repeat the call to resume.

    Args:
        model: Transformers model; its logits are [..., classes] for labels [...].
        dataset: Rows with `labels`: a sequence of dictionaries, such as a `datasets.Dataset`.
        folder: Folder of the distributions.
        alpha: Alpha of the model's probabilities; 1 is softmax.
        collator: Function that makes a batch of rows. It must keep all labels and their order, but may pack rows.
        top_k: Number of stored probabilities per label; None: all that are not zero, for softmax all classes.
        shift: Whether the logits of a position predict the next label; None: as the model does.
        batch_size: Number of rows per batch.

    Raises:
        InputError: The folder is a file, or contains other distributions or a damaged part.
        ValueError: The numbers of labels and logits differ, the collator changes labels, it is unknown whether the
            model shifts labels, the model has no weights, or an argument is out of range.

    Example:
        >>> import os, tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=2)
        >>> rows, folder = [{"input_ids": [5, 6, 2], "labels": [-100, 6, 2]}], tempfile.mkdtemp()
        >>> distill(GPT2LMHeadModel(config), rows, folder)
        >>> sorted(os.listdir(folder))
        ['part-00000000.safetensors', 'teacher.json']
    """
    shift = shifts(unwrap(model)) if shift is None else shift
    alpha = alpha_number(alpha)
    for name, size in (("batch_size", batch_size), ("top_k", 1 if top_k is None else top_k)):
        if integer(name, size) < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder, found a file")
    digest, row_labels = _read_labels(dataset)

    def compute(start: int, stop: int) -> dict[str, Tensor]:
        rows = []
        with eval_mode(model), torch.no_grad():
            for first in range(start, stop, batch_size):
                last = min(first + batch_size, stop)
                labels, probs = _probabilities(model, collator([dataset[i] for i in range(first, last)]), alpha, shift)
                expected = torch.cat(row_labels[first:last]).long()
                if not torch.equal(labels, expected):
                    counts = f"expected {len(expected)} labels in the order of the dataset, got {len(labels)} labels"
                    raise ValueError(f"collator must not change the labels of rows {first} to {last - 1}: {counts}")
                rows.append(SparseRows.from_dense(probs, top_k))
        return part_columns(rows, torch.tensor([len(x) for x in row_labels[start:stop]]))

    facts = {"data": digest, "vocabulary": "", "teachers": [_digest(model, alpha, shift)]}
    write_distributions(folder, {**facts, "top_k": top_k, "search": None}, len(dataset), compute)


def _probabilities(model: Any, batch: Any, alpha: float, shift: bool) -> tuple[Tensor, Tensor]:
    """Return the labels of a batch except -100, and their probabilities; no logits predict the first label of a row."""
    device = input_device(model)
    batch = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in batch.items()}
    labels = batch.pop("labels")
    add_decoder_inputs(unwrap(model), batch, labels)
    if "use_cache" in inspect.signature(unwrap(model).forward).parameters:
        batch["use_cache"] = False  # with a cache, Transformers does not separate packed rows
    logits = model(**batch).logits
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"labels must have shape {list(logits.shape[:-1])}, got {list(labels.shape)}")
    if shift:
        mask = batch.get("attention_mask")
        if mask is not None and mask.shape == labels.shape:  # nor do the logits of padding
            logits = logits.masked_fill((mask == 0).unsqueeze(-1), -torch.inf)
        logits = F.pad(logits[:, :-1], (0, 0, 1, 0), value=-torch.inf)
    counted = labels != IGNORE_INDEX
    return labels[counted].long().cpu(), entmax(logits[counted].float(), alpha).cpu()


def _digest(model: Any, alpha: float, shift: bool) -> str:
    """Return the digest of what determines a model's distributions."""
    weights = hashlib.sha256(f"{alpha} {shift}".encode())
    for name, x in model.state_dict().items():
        owner = name
        while owner and isinstance(x, Tensor) and x.is_meta:  # the module or a module around it loads the weights
            owner = owner.rpartition(".")[0]
            with loaded(model.get_submodule(owner)):
                x = attrgetter(name)(model)
        if isinstance(x, Tensor) and x.is_meta:
            raise ValueError(f"{name} has no weights: expected a loaded model or weights that accelerate has offloaded")
        x = x.detach().cpu() if isinstance(x, Tensor) else x
        if not isinstance(x, Tensor) or x.is_quantized or is_traceable_wrapper_subclass(x):
            file = io.BytesIO()
            torch.save((name, x), file)
            weights.update(file.getbuffer())
        else:
            weights.update(f"{name} {x.dtype}".encode())
            weights.update(x.contiguous().flatten().view(torch.uint8).numpy().data)
    return weights.hexdigest()


class DistilledDataset(torch.utils.data.Dataset[Any]):
    """Dataset whose labels are the distributions in a folder, for a student in `Trainer`.

    Label -101 stands for row 0 of `rows`, -102 for row 1, and so on; -100 is ignored. :func:`trainer_loss` and
    :func:`lm_loss` accept these labels.

    Args:
        dataset: Dataset that :func:`distill` read; it may have other inputs, but the same `input_ids` and `labels`.
        folder: Folder of the distributions.
        weight: Share of the teacher in the targets; the labels of the dataset have the rest.
        collator: Function that makes a batch of rows, for an encoder-decoder with `decoder_input_ids`.

    Attributes:
        rows: Targets of all labels, for the argument `teacher` of the losses.

    Raises:
        InputError: The folder is incomplete or damaged, or belongs to other data.

    Example:
        >>> import tempfile
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(vocab_size=9, n_embd=8, n_head=2, n_layer=1, bos_token_id=1, eos_token_id=2)
        >>> rows, folder = [{"input_ids": [5, 6, 2], "labels": [-100, 6, 2]}], tempfile.mkdtemp()
        >>> distill(GPT2LMHeadModel(config), rows, folder)
        >>> data = DistilledDataset(rows, folder)
        >>> data.collate([data[0]])["labels"]
        tensor([[-100, -101, -102]])
    """

    def __init__(
        self, dataset: Any, folder: Path | str, weight: float = 0.5, collator: Collator = default_data_collator
    ) -> None:
        digest, labels = _read_labels(dataset)
        stored = read_distributions(Path(folder), digest, "")
        self._labels = torch.cat(labels).long()
        self.rows = stored.mixed(self._labels, weight)
        self.dataset, self.collator, self._starts = dataset, collator, stored.starts

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = range(len(self.dataset))[index]
        return {**self.dataset[index], INDEX: index}

    def collate(self, rows: list[dict[str, Any]]) -> Any:
        """Make a batch whose labels stand for rows, see the class. Rows of other datasets keep their labels.

        Raises:
            ValueError: The collator changed the labels or their order.
        """
        index = [row[INDEX] for row in rows if INDEX in row]
        batch = self.collator([{name: x for name, x in row.items() if name != INDEX} for row in rows])
        if not index:
            return batch
        counted = batch["labels"] != IGNORE_INDEX
        number = torch.cat([torch.arange(int(self._starts[i]), int(self._starts[i + 1])) for i in index])
        labels = batch["labels"].long()
        if not torch.equal(labels[counted], self._labels[number]):
            counts = f"expected {len(number)} labels in the order of the rows, got {int(counted.sum())} labels"
            raise ValueError(f"collator must not change the labels of rows: {counts}")
        batch["labels"] = labels.masked_scatter(counted, FIRST_LABEL - number)
        return batch


def _read_labels(dataset: Any) -> tuple[str, list[Tensor]]:
    """Return the digest of a dataset, and the labels of each row except -100."""
    digest, labels = hashlib.sha256(), []
    if not hasattr(dataset, "__len__"):
        raise InputError(f"dataset must have a length and row numbers, such as a list, got {describe(dataset)}")
    if not len(dataset):
        raise InputError("dataset must have at least one row, got none")
    for i in range(len(dataset)):
        row = dataset[i]
        if "labels" not in row and "label" not in row:
            raise InputError(f"dataset must have labels in each row, found {', '.join(row)} in row {i}")
        row_labels = torch.as_tensor(row["labels"] if "labels" in row else row["label"]).flatten()
        inputs = torch.as_tensor(row.get("input_ids", ())).tolist()
        digest.update(f"{inputs} {row_labels.tolist()}".encode())
        labels.append(row_labels[row_labels != IGNORE_INDEX])
    return digest.hexdigest(), labels
