"""Parameters that one model has under several names: embeddings that are projections, alphas of many heads."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from torch import nn

from tsallis.nn import OutputLayer

SHARES = ("none", "target", "all")


class SymbolRows(NamedTuple):
    """The symbols that the rows of a parameter are of."""

    side: str  # "src" or "tgt"
    first: int = 0  # number of the first row's symbol


SEQUENCE_ROWS = {
    "src_embedding.weight": SymbolRows("src"),
    "tgt_embedding.weight": SymbolRows("tgt"),
    "output.projection.weight": SymbolRows("tgt"),
    "output.projection.bias": SymbolRows("tgt"),
}


def share_embeddings(
    share: str, src_embedding: nn.Embedding, tgt_embedding: nn.Embedding, output: OutputLayer, known: tuple[str, ...]
) -> None:
    """Make one matrix of the target embedding and the output projection, and for "all" of the source embedding, too.

    Raises:
        ValueError: a way to share that is not `known`, vocabularies that cannot share.
    """
    if share not in known:
        raise ValueError(f"share must be one of {', '.join(known)}, got {share!r}")
    if share == "none":
        return
    output.tie(cast(nn.Parameter, tgt_embedding.weight))
    if share == "all":
        sizes = (src_embedding.num_embeddings, tgt_embedding.num_embeddings)
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"to share all embeddings src_vocab and tgt_vocab must be equal, got {sizes[0]} and {sizes[1]}"
            )
        src_embedding.weight = tgt_embedding.weight


def shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the names of a state dict that stand for the same parameter as an earlier one: each with that earlier one.

    A checkpoint leaves the first of each pair out, and gives it the value of the second when it is read.
    """
    names: dict[int, str] = {}
    aliases = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        original = names.setdefault(id(parameter), name)
        if original != name:
            aliases[name] = original
    return aliases


def aliases_of(model: Any) -> dict[str, str]:
    """Return what a model says of its :func:`shared_parameters`; nothing of one that does not."""
    return dict(model.shared_parameters()) if hasattr(model, "shared_parameters") else {}
