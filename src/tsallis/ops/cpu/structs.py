"""Define the argument structures of the compiled kernels, equal to those in `api.h`."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int32, c_int64, c_uint64, c_void_p


class Layout(ctypes.Structure):
    """Layout of rows and their alphas."""

    _fields_ = (
        ("storage", c_int32),
        ("rows", c_int64),
        ("d", c_int64),
        ("inner", c_int64),
        ("alpha", c_double),
        ("alphas", c_void_p),
    )


def _call(name: str, *pointers: str, numbers: tuple[str, ...] = ()) -> type[ctypes.Structure]:
    fields = [("layout", Layout), *((p, c_void_p) for p in pointers), *((n, c_int64) for n in numbers)]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_Map = _call("_Map", "scores", "probs", "stats")
_MapGradient = _call("_MapGradient", "probs", "grad", "scores_grad", "alpha_grad")
_Loss = _call("_Loss", "scores", "target", "loss", "stats", "alpha_grad", numbers=("width",))
_LossGradient = _call("_LossGradient", "scores", "target", "stats", "grad", "scores_grad", numbers=("width", "relu"))
_Support = _call("_Support", "scores", "stats", "offsets", "index", "value", numbers=("relu",))


class _ReluLoss(ctypes.Structure):
    _fields_ = (
        ("layout", Layout),
        ("scores", c_void_p),
        ("target", c_void_p),
        ("tau", c_double),
        ("loss", c_void_p),
        ("stats", c_void_p),
    )


class _Gather(ctypes.Structure):
    _fields_ = (
        ("storage", c_int32),
        ("rows", c_int64),
        ("m", c_int64),
        *((name, c_void_p) for name in ("offsets", "index", "value", "scale", "minus", "table", "out", "total")),
    )


class _Drop(ctypes.Structure):
    _fields_ = (
        ("storage", c_int32),
        ("n", c_int64),
        ("d", c_int64),
        ("seed", c_uint64),
        ("keep_prob", c_double),
        ("in", c_void_p),
        ("out", c_void_p),
    )


class Heads(ctypes.Structure):
    """Tensor [batch, heads, rows, size] whose last dimension has stride 1."""

    _fields_ = (("memory", c_void_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64))


class Attention(ctypes.Structure):
    """Arguments of attention, forward and backward."""

    __slots__ = ()  # unknown field names raise an error
    _fields_ = (
        ("storage", c_int32),
        ("causal", c_int32),
        *((name, c_int64) for name in ("batch", "key_heads", "group", "queries", "keys", "size", "value_size")),
        *((name, c_int64) for name in ("tile_rows", "capacity", "splits")),
        ("scale", c_double),
        ("keep_prob", c_double),
        ("seed", c_uint64),
        ("alpha", c_double),
        ("alphas", c_void_p),
        ("alpha_strides", c_int64 * 2),
        ("lengths", c_void_p),
        *((name, Heads) for name in ("query", "key", "value", "out")),
        ("mask", c_void_p),
        ("boolean_mask", c_int32),
        ("mask_strides", c_int64 * 4),
        ("slopes", c_void_p),
        ("slope_strides", c_int64 * 2),
        ("key_norms", c_void_p),
        ("block_norms", c_void_p),
        ("offset", c_int64),
        *((name, c_void_p) for name in ("support", "stats", "columns", "weight")),
        *((name, Heads) for name in ("grad", "query_grad", "key_grad", "value_grad")),
        *((name, c_void_p) for name in ("alpha_grad", "slope_grad", "mask_grad")),
        ("mask_grad_strides", c_int64 * 5),
    )


class Rank(ctypes.Structure):
    """Arguments that find the most probable symbols of rows of scores."""

    __slots__ = ()
    _fields_ = (
        *((name, c_int64) for name in ("rows", "d", "stride", "count", "end", "relu")),
        ("alpha", c_double),
        ("tau", c_double),
        ("distinct", c_double),
        *((name, c_void_p) for name in ("only", "scores", "best", "symbols", "ends", "mass", "support")),
    )


class Decoder(ctypes.Structure):
    """Arguments of a step of a Transformer decoder."""

    __slots__ = ()
    _fields_ = (
        ("rank", Rank),
        *((name, c_int64) for name in ("rows", "layers", "d", "hidden", "heads", "pre_norm")),
        ("embedding_scale", c_double),
        ("epsilon", c_double),
        *((name, c_void_p) for name in ("weights", "positions", "token", "state")),
        ("state_row", c_int64),
        *((name, c_void_p) for name in ("next_state", "cache", "attended", "attention")),
        ("attention_row", c_int64),
        ("scores", c_void_p),
    )


class Encoder(ctypes.Structure):
    """Arguments of a Transformer encoder."""

    __slots__ = ()
    _fields_ = (
        *((name, c_int64) for name in ("batch", "width", "layers", "d", "hidden", "heads", "pre_norm")),
        ("embedding_scale", c_double),
        ("epsilon", c_double),
        *((name, c_void_p) for name in ("weights", "positions", "token", "lengths", "states")),
        *((name, c_int64) for name in ("symbols", "unknown_token")),
    )


class Project(ctypes.Structure):
    """Arguments that compute the keys and values of sources for a Transformer decoder."""

    __slots__ = ()
    _fields_ = (
        *((name, c_int64) for name in ("batch", "width", "d", "columns")),
        *((name, c_void_p) for name in ("weights", "bias", "states", "lengths", "source", "state")),
    )


class Beam(ctypes.Structure):
    """Arguments that manage the beams of a search."""

    __slots__ = ()
    _fields_ = (
        *((name, c_int64) for name in ("sources", "size", "n_best", "num_recorded")),
        ("length_penalty", c_double),
        ("competing_ends", c_int64),
        ("source", c_void_p),
        ("source_row", c_int64),
        ("score", c_void_p),
        *((name, c_int64) for name in ("length", "rows", "capacity")),
        ("prefixes", c_void_p),
        ("log_prob", c_void_p),
        *((name, c_int64) for name in ("base", "used", "room")),
        ("history", c_void_p),
        ("history_value", c_void_p),
        ("nan_source", c_int64),
        ("rank", Rank),
        ("attended", c_void_p),
    )


class Search(ctypes.Structure):
    """Arguments of a beam search with a Transformer decoder."""

    __slots__ = ()
    _fields_ = (
        ("decoder", Decoder),
        ("beam", Beam),
        ("states", c_void_p),
        ("only", c_void_p),
        ("unknown_symbol", c_int64),
    )


CALLS: dict[str, type[ctypes.Structure]] = {
    "map": _Map,
    "map_gradient": _MapGradient,
    "loss": _Loss,
    "loss_gradient": _LossGradient,
    "relu_loss": _ReluLoss,
    "support": _Support,
    "gather": _Gather,
    "drop": _Drop,
    "rank": Rank,
    "decoder": Decoder,
    "encoder": Encoder,
    "project": Project,
    "begin": Beam,
    "beam": Beam,
    "search": Search,
    "attention": Attention,
    "attention_gradient": Attention,
}

PANEL_COLUMNS = 32  # columns per panel of packed weights
# Columns of a beam search's memory: for sources, current prefixes, rows of earlier steps, and doubles of these rows.
BEAM_SOURCE = ("steps", "free_from", "rows", "costs", "gave_up", "unclear")  # followed by the required symbols
PREFIX_COLUMNS = ("token", "parent", "owner")
HISTORY_COLUMNS = (*PREFIX_COLUMNS, "support", "attended")
HISTORY_VALUES = ("log_prob", "end")
NUMBER = 8  # bytes per number in all of them
FIRST_ADDRESS = 3  # number of columns in a decoder state before the addresses of tokens
STATS = 5  # numbers per row that a loss saves: maximum, threshold (coarse and fine), 1 / sum, support size


def sizes() -> dict[str, int]:
    """Return the constants that a library must match, by name: sizes of structures, and STATS."""
    structures: dict[str, type[ctypes.Structure]] = {"layout": Layout, "heads": Heads, **CALLS}
    return {**{name: ctypes.sizeof(structure) for name, structure in structures.items()}, "stats": STATS}
