"""Support parameters with several names, such as an embedding that is also a projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from tsallis.errors import check_one_of
from tsallis.models.checks import check_last_pass
from tsallis.models.protocol import DecoderOutput
from tsallis.nn import AttentionStats, MultiheadAttention, OutputLayer
from tsallis.symbols import PAD

SHARES = ("none", "target", "all")


class SymbolRows(NamedTuple):
    """Symbols that the rows of a parameter represent."""

    side: str  # "src" or "tgt"
    first: int = 0  # index of the symbol in the first row


SEQUENCE_ROWS = {
    "src_embedding.weight": SymbolRows("src"),
    "tgt_embedding.weight": SymbolRows("tgt"),
    "output.projection.weight": SymbolRows("tgt"),
    "output.projection.bias": SymbolRows("tgt"),
}


def share_embeddings(
    share: str, src_embedding: nn.Embedding, tgt_embedding: nn.Embedding, output: OutputLayer, known: tuple[str, ...]
) -> None:
    """Share a matrix between target embedding and output projection; with "all", also with the source embedding.

    Raises:
        ValueError: a value of `share` that is not `known`, vocabularies of different sizes with "all".
    """
    check_one_of("share", share, known)
    if share == "none":
        return
    output.tie(cast(nn.Parameter, tgt_embedding.weight))
    if share == "all":
        sizes = (src_embedding.num_embeddings, tgt_embedding.num_embeddings)
        if sizes[0] != sizes[1]:
            raise ValueError(f"src_vocab and tgt_vocab must be equal with share 'all', got {sizes[0]} and {sizes[1]}")
        src_embedding.weight = tgt_embedding.weight


class SharingModel(nn.Module):
    """Model whose parameters may have several names, also after it is moved or loads weights."""

    def __init__(self) -> None:
        super().__init__()
        self._shared: dict[str, str] = {}  # set only while the model is moved or loads weights
        self.register_load_state_dict_post_hook(_restore_shared_parameters)

    def shared_parameters(self) -> dict[str, str]:
        """Return a dictionary from each duplicate name of a parameter to the parameter's first name.

        A checkpoint omits the duplicate names. When it is loaded, they get the value of the first name.
        """
        names: dict[int, str] = {}
        aliases = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            original = names.setdefault(id(parameter), name)
            if original != name:
                aliases[name] = original
        return aliases

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SharingModel:
        self._shared = self.shared_parameters()
        super()._apply(fn, recurse)
        _restore_shared_parameters(self)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._shared = self.shared_parameters()
        super()._load_from_state_dict(*arguments)


class AttentionModel(SharingModel):
    """Base class of Transformers, with statistics of their attention heads."""

    def attentions(self) -> dict[str, list[MultiheadAttention]]:
        """Return the attention of each layer by kind: "encoder", "decoder" and "cross"."""
        raise NotImplementedError

    def alphas(self) -> dict[str, Tensor]:
        """Return the alphas [layers, heads] of each kind of attention."""
        return {kind: torch.stack([a.alphas().detach() for a in part]) for kind, part in self.attentions().items()}

    def attention_stats(self) -> dict[str, list[AttentionStats]]:
        """Return the sparsity of the last pass for each kind of attention, as statistics of each layer's heads.

        Source padding is excluded; target padding counts like any other step.

        Raises:
            RuntimeError: If there was no pass yet, or the last pass was compiled.
        """
        return {kind: [a.stats() for a in part] for kind, part in self.attentions().items()}

    def count_attended(self, tgt_in: Tensor) -> Tensor:
        """Return sums over the queries of the last pass, except padding [3]: attended keys, visible keys, queries.

        Args:
            tgt_in: Target symbols that the pass read [batch, tgt].

        Raises:
            RuntimeError: If there was no pass yet, or the last pass was compiled.
        """
        active = self._active(tgt_in)
        sums = [
            attention.count_attended(None if kind == "encoder" else active).sum(1)
            for kind, part in self.attentions().items()
            for attention in part
        ]
        return torch.stack(sums).sum(0)

    def _active(self, tgt_in: Tensor) -> Tensor:
        """Return a mask of the decoder's queries that are not padding, in the shape of the last pass."""
        return tgt_in != PAD

    def _supports(self, kind: str, decoded: DecoderOutput) -> Tensor:
        """Return the numbers of attended positions in the last pass [layers, batch, heads, steps]."""
        attentions = self.attentions()[kind]
        if any(not attention.recorded for attention in attentions):
            check_last_pass(None, decoded)
        return torch.stack([attention.support() for attention in attentions])


def _restore_shared_parameters(model: SharingModel, _: Any = None) -> None:
    """Restore shared parameters: PyTorch creates one parameter per name for a parameter on the device "meta"."""
    for alias, original in model._shared.items():
        parent, _, name = alias.rpartition(".")
        setattr(model.get_submodule(parent), name, model.get_parameter(original))
    model._shared = {}


def aliases_of(model: object) -> dict[str, str]:
    """Return the duplicate names of a model's parameters, see :meth:`SharingModel.shared_parameters`."""
    return dict(model.shared_parameters()) if hasattr(model, "shared_parameters") else {}
