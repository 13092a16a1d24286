"""Define the argument structures of the compiled kernels, with the same layout as in `api.h`."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

Fields = tuple[tuple[str, Any], ...]


def _fields(*groups: tuple[Any, str]) -> Fields:
    """Return the fields of a structure; each group is a type with the names of its fields."""
    return tuple((name, kind) for kind, names in groups for name in names.split())


def _structure(*groups: tuple[Any, str]) -> type[ctypes.Structure]:
    return type("Call", (ctypes.Structure,), {"_fields_": _fields(*groups)})


class Layout(ctypes.Structure):
    """Layout of rows and their alphas."""

    _fields_ = _fields((c_int32, "storage"), (c_int64, "rows d inner"), (c_double, "alpha"), (c_void_p, "alphas"))


class Heads(ctypes.Structure):
    """Tensor [batch, heads, rows, size] whose last dimension has stride 1."""

    _fields_ = _fields((c_void_p, "memory"), (c_int64, "batch head row"))


class Attention(ctypes.Structure):
    """Arguments of attention, forward and backward."""

    __slots__ = ()  # unknown field names raise an error
    _fields_ = _fields(
        (c_int32, "storage causal"),
        (c_int64, "batch key_heads group queries keys size value_size tile_rows capacity splits"),
        (c_double, "scale keep_prob"),
        (c_uint64, "seed"),
        (c_double, "alpha"),
        (c_void_p, "alphas"),
        (c_int64 * 2, "alpha_strides"),
        (c_void_p, "lengths"),
        (Heads, "query key value out"),
        (c_void_p, "mask"),
        (c_int32, "boolean_mask"),
        (c_int64 * 4, "mask_strides"),
        (c_void_p, "slopes"),
        (c_int64 * 2, "slope_strides"),
        (c_void_p, "key_norms block_norms"),
        (c_int64, "offset"),
        (c_void_p, "support stats columns weight"),
        (Heads, "grad query_grad key_grad value_grad"),
        (c_void_p, "alpha_grad slope_grad mask_grad"),
        (c_int64 * 5, "mask_grad_strides"),
    )


class Screen(ctypes.Structure):
    """Arguments of attention that scans keys in 8 bits, and of the encoding of keys."""

    __slots__ = ()
    _fields_ = _fields(
        (Attention, "attention"),
        (c_void_p, "rows"),
        (c_int64, "head_bytes"),
        (c_void_p, "mean channel longest pauses"),
        (c_int64, "begin"),
        (c_double, "bound"),
    )


class Rank(ctypes.Structure):
    """Arguments of the kernel that finds the most probable symbols of rows of scores."""

    __slots__ = ()
    _fields_ = _fields(
        (c_int64, "rows d stride count end relu"),
        (c_double, "alpha tau distinct"),
        (c_void_p, "only scores best symbols ends mass support log_probs"),
    )


class Decoder(ctypes.Structure):
    """Arguments of a step of a decoder."""

    __slots__ = ()
    _fields_ = _fields(
        (Rank, "rank"),
        (c_int64, "kind rows layers d hidden heads pre_norm"),
        (c_double, "embedding_scale epsilon"),
        (c_void_p, "positions"),
        (c_int64, "d_embedding feeding"),
        (c_void_p, "weights token state"),
        (c_int64, "state_row growth"),
        (c_void_p, "next_state cache"),
        (c_int64, "cache_row"),
        (c_void_p, "attended attention"),
        (c_int64, "attention_row"),
        (c_void_p, "scores screen"),
    )


class Encoder(ctypes.Structure):
    """Arguments of a Transformer encoder."""

    __slots__ = ()
    _fields_ = _fields(
        (c_int64, "batch width layers d hidden heads pre_norm"),
        (c_double, "embedding_scale epsilon"),
        (c_void_p, "weights positions token lengths states"),
        (c_int64, "symbols unknown_token"),
    )


class Project(ctypes.Structure):
    """Arguments of the kernel that computes the keys and values of sources for a Transformer decoder."""

    __slots__ = ()
    _fields_ = _fields((c_int64, "batch width d columns"), (c_void_p, "weights bias states lengths source state"))


class Beam(ctypes.Structure):
    """Arguments of the kernels that manage the beams of a search."""

    __slots__ = ()
    _fields_ = _fields(
        (c_int64, "sources size n_best num_recorded"),
        (c_double, "length_penalty"),
        (c_int64, "competing_ends"),
        (c_void_p, "source"),
        (c_int64, "source_row"),
        (c_void_p, "score"),
        (c_int64, "length rows capacity"),
        (c_void_p, "prefixes log_prob"),
        (c_int64, "base used room"),
        (c_void_p, "history history_value"),
        (c_int64, "nan_source"),
        (Rank, "rank"),
        (c_void_p, "attended"),
    )


class SearchModel(ctypes.Structure):
    """Decoder of a beam search."""

    __slots__ = ()
    _fields_ = _fields((Decoder, "decoder"), (c_void_p, "states"))


class Search(ctypes.Structure):
    """Arguments of a beam search with one or more decoders."""

    __slots__ = ()
    _fields_ = _fields(
        (c_void_p, "models"), (c_int64, "num_models"), (Beam, "beam"), (c_void_p, "only"), (c_int64, "unknown_symbol")
    )


ROWS = (Layout, "layout")
CALLS: dict[str, type[ctypes.Structure]] = {
    "map": _structure(ROWS, (c_void_p, "scores probs stats")),
    "map_gradient": _structure(ROWS, (c_void_p, "probs grad scores_grad alpha_grad")),
    "loss": _structure(ROWS, (c_void_p, "scores target loss stats alpha_grad"), (c_int64, "width")),
    "loss_gradient": _structure(ROWS, (c_void_p, "scores target stats grad scores_grad"), (c_int64, "width relu")),
    "relu_loss": _structure(ROWS, (c_void_p, "scores target"), (c_double, "tau"), (c_void_p, "loss stats")),
    "support": _structure(ROWS, (c_void_p, "scores stats offsets index value"), (c_int64, "relu")),
    "gather": _structure(
        (c_int32, "storage"), (c_int64, "rows m"), (c_void_p, "offsets index value scale minus table out total")
    ),
    "drop": _structure(
        (c_int32, "storage"), (c_int64, "n d"), (c_uint64, "seed"), (c_double, "keep_prob"), (c_void_p, "in out")
    ),
    "rank": Rank,
    "decoder": Decoder,
    "encoder": Encoder,
    "project": Project,
    "begin": Beam,
    "beam": Beam,
    "search": Search,
    "attention": Attention,
    "attention_gradient": Attention,
    "screen": Screen,
    "screened": Screen,
}

KINDS = ("transformer", "lstm", "gru")  # kinds of decoders
PANEL_COLUMNS = 32  # columns per panel of packed weights
# A beam search stores four tables of numbers: integers per source; integers per prefix; integers per row of earlier
# steps; and doubles per row of earlier steps.
BEAM_SOURCE = ("steps", "free_from", "rows", "costs", "gave_up", "unclear")  # followed by the required symbols
PREFIX_COLUMNS = ("token", "parent", "owner")
HISTORY_COLUMNS = (*PREFIX_COLUMNS, "support", "attended")
HISTORY_VALUES = ("log_prob", "end")
NUMBER = 8  # bytes per number in these tables
FIRST_ADDRESS = 3  # number of columns in a decoder state before the addresses of tokens
STATS = 5  # numbers per row that a loss saves: maximum, threshold (coarse and fine), 1 / sum, support size


def sizes() -> dict[str, int]:
    """Return the sizes of the structures, and STATS, by name; a compiled library must have the same values."""
    structures: dict[str, type[ctypes.Structure]] = {"layout": Layout, "heads": Heads, **CALLS}
    return {**{name: ctypes.sizeof(structure) for name, structure in structures.items()}, "stats": STATS}
