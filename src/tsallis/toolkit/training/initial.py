"""Initial parameters that are not random: parameters of another run, or word vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tsallis.errors import InputError
from tsallis.models.sharing import SymbolRows, aliases_of
from tsallis.symbols import FIRST, SPECIALS
from tsallis.toolkit.data.io import check_file, read_bytes
from tsallis.toolkit.data.word_vectors import WordVectors
from tsallis.toolkit.training.checkpoint import find_nonfinite
from tsallis.toolkit.training.file_names import START
from tsallis.toolkit.training.run_folder import Run

MAX_NAMES = 4  # maximum number of parameter names per line of output
# Arguments that may differ, or that depend on the vocabularies.
FREE = {
    *("src_vocab", "tgt_vocab", "vocab", "forbidden"),
    *("layers", "encoder_layers", "decoder_layers", "dropout", "tau", "output", "output_alpha", "alpha"),
}


@dataclass
class Start:
    """Model with its initial parameters, and their origin.

    Args:
        model: Model with the initial parameters.
        facts: Origin of the parameters, for the log: "run" describes another run, "embeddings" describes word vectors.
    """

    model: Any
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The origin of the parameters, as readable lines."""
        return describe_start(self.facts)

    def blob(self) -> bytes | None:
        """Return the content of the file of initial parameters, or None if all parameters are random."""
        if not self.facts:
            return None
        shared = aliases_of(self.model)
        state = {name: value for name, value in self.model.state_dict().items() if name not in shared}
        return safetensors.torch.save(state, metadata={"init": json.dumps(self.facts)})


@torch.no_grad()
def take_parameters(model: Any, source: Run, vocabularies: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the parameters of a trained model into another model.

    The two models must have the same class and the same sizes. Dropout, attention, output mapping, number of layers and
    vocabularies may differ: only parameters that occur in both models are copied. Rows that belong to symbols, such as
    embeddings, are matched by the spelling of the symbols.

    Args:
        model: Model whose parameters are set.
        source: Run with the trained model.
        vocabularies: Vocabularies of `model`, by "src" and "tgt".

    Returns:
        A dictionary. "taken", "random" (missing in the source) and "unused" (missing in `model`) are lists of parameter
        names. "symbols" maps each parameter with one row per symbol to two numbers: copied rows, and all rows.

    Raises:
        InputError: If the class of the model or the shape of a parameter differs.
    """
    if type(source.model) is not type(model):
        problem = f"expected a model of the class {type(model).__name__}, found {type(source.model).__name__}"
        raise InputError(f"training.init_from: {source.folder}: {problem}")
    source_state, shared, by_symbol = source.model.state_dict(), aliases_of(model), model.symbol_rows
    target_state = {name: value for name, value in model.state_dict().items() if name not in shared}
    taken: list[str] = []
    symbols: dict[str, list[int]] = {}
    matches = [name for name in target_state if name in source_state]
    for name in matches:  # check all shapes before the first parameter is changed
        source_shape, target_shape = (list(x[name].shape[name in by_symbol :]) for x in (source_state, target_state))
        if source_shape != target_shape:
            problem = (
                f"{name} must have shape {target_shape}, found {source_shape}; {_differences(model, source.model)}"
            )
            raise InputError(f"training.init_from: {source.folder}: {problem}")
    for name in matches:
        if name in by_symbol:
            symbols[name] = _take_rows(target_state[name], source_state[name], by_symbol[name], source, vocabularies)
        else:
            target_state[name].copy_(source_state[name])
            taken.append(name)
    known_names = aliases_of(source.model).keys() | shared.keys() | target_state.keys()
    return {
        "taken": taken,
        "symbols": dict(sorted(symbols.items())),
        "random": [name for name in target_state if name not in source_state],
        "unused": [name for name in source_state if name not in known_names],
    }


def _differences(model: Any, other: Any) -> str:
    """Return the rest of the message for a parameter of another shape: the settings that may be the reason."""
    arguments, other_arguments = model.arguments, other.arguments
    names = [name for name in arguments.keys() | other_arguments.keys() if name not in FREE and "attention" not in name]
    differing = sorted(name for name in names if _setting(arguments, name) != _setting(other_arguments, name))
    if not differing:
        return "use the same sizes in the section model"
    values = ", ".join(f"{name} ({_setting(other_arguments, name)} in the other run)" for name in differing)
    return f"these settings of the section model differ: {values}"


def _setting(arguments: Mapping[str, Any], name: str) -> Any:
    """Return an argument as a setting. Lists and dictionaries of symbols depend on the vocabularies."""
    value = arguments.get(name)
    return "set" if isinstance(value, dict | list) else value


def _take_rows(
    target_rows: Tensor, source_rows: Tensor, rows: SymbolRows, source: Run, vocabularies: Mapping[str, Any]
) -> list[int]:
    """Copy the rows of special and common symbols; return the number of copied rows and the number of all rows."""
    source_numbers = symbol_numbers(source.src_vocab if rows.side == "src" else source.tgt_vocab)
    pairs = [
        (number, source_numbers[name])
        for name, number in symbol_numbers(vocabularies[rows.side]).items()
        if name in source_numbers
    ]
    pairs += [(number, number) for number in range(rows.first, len(SPECIALS))]
    index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2) - rows.first
    target_rows[index[:, 0]] = source_rows[index[:, 1]]
    return [len(index), len(target_rows)]


def symbol_numbers(vocabulary: Any) -> dict[str, int]:
    """Return the numbers of a vocabulary's symbols by spelling, without special symbols."""
    return {vocabulary.name(number): number for number in range(FIRST, len(vocabulary))}


@torch.no_grad()
def set_embeddings(model: Any, side: str, vectors: WordVectors, origin: str) -> None:
    """Set the embeddings of the symbols that have word vectors.

    Raises:
        InputError: If the model has no embeddings on that side, or the vectors have another size.
    """
    name = embedding_name(model, side)
    if name is None:
        raise InputError(f"{origin}: the model has no {side} embeddings")
    parameter = model.get_parameter(name)
    if vectors.matrix.shape[1] != parameter.shape[1]:
        raise InputError(f"{origin}: expected vectors of {parameter.shape[1]} numbers, found {vectors.matrix.shape[1]}")
    parameter[list(vectors.numbers)] = vectors.matrix.to(parameter)


def embedding_name(model: Any, side: str) -> str | None:
    """Return the parameter name of the embeddings on a side, "src" or "tgt"; None if this side has no embeddings."""
    names = (name for name, rows in model.symbol_rows.items() if rows.side == side and "embedding" in name)
    return next(names, None)


@torch.no_grad()
def load_start(model: Any, folder: Path) -> dict[str, Any]:
    """Load the initial parameters of a run into a model, and return their origin.

    Raises:
        InputError: If the file is missing or damaged, or belongs to another model.
    """
    path = folder / START
    check_file(path)
    blob = read_bytes(path)
    try:
        parameters = safetensors.torch.load(blob)
        length = int.from_bytes(blob[:8], "little")
        facts = json.loads(json.loads(blob[8 : 8 + length])["__metadata__"]["init"])
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not a file of initial parameters; restore the file") from error
    state, shared = model.state_dict(), aliases_of(model)
    shapes = {name: value.shape for name, value in state.items() if name not in shared}
    if {name: value.shape for name, value in parameters.items()} != shapes or not isinstance(facts, dict):
        raise InputError(f"{path}: belongs to another model; restore the file")
    if (name := find_nonfinite(parameters)) is not None:
        raise InputError(f"{path}: {name} is not finite; restore the file")
    for name, value in parameters.items():
        state[name].copy_(value)
    return facts


def describe_start(facts: Mapping[str, Any]) -> list[str]:
    """Return lines that describe the origin of the initial parameters of a run."""
    lines = []
    if source := facts.get("run"):
        rows = "".join(f"; {name} of {part} of {total} symbols" for name, (part, total) in source["symbols"].items())
        lines.append(
            f"Starts from {source['folder']} ({source['checkpoint']}, step {source['step']}): "
            f"{len(source['taken'])} parameters as they are{rows}"
        )
        for key, title in (("random", "Missing, initialized at random"), ("unused", "Not used")):
            names = source[key]
            suffix = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            lines += [f"{title}: {', '.join(names[:MAX_NAMES])}{suffix}"] if names else []
    for side, vectors in facts.get("embeddings", {}).items():
        lines.append(
            f"Embeddings of {side} from {vectors['file']}: {vectors['symbols']} of {vectors['of']} symbols, "
            f"{vectors['coverage']:.1%} of the training data's{', frozen' if vectors['frozen'] else ''}"
        )
    return lines
