"""Define containers for the arguments and results of operations, shared by checks and kernels."""

from __future__ import annotations

from typing import Any, NamedTuple, cast, get_type_hints

from torch import Tensor

from tsallis.ops.alphas import Alpha


class AttentionArgs(NamedTuple):
    """Checked tensors and options of an attention call.

    Tensors come first, starting with the tensors that may have gradients."""

    query: Tensor  # [batch, heads, queries, size]
    key: Tensor  # [batch, key heads, keys, size]
    value: Tensor  # [batch, key heads, keys, value size]
    alphas: Tensor | None  # [1 or batch, heads]; None: every head uses `alpha_value`
    # [1 or batch, 1 or heads, 1 or queries, 1 or keys]: boolean (True: attend), or numbers added to the scores
    mask: Tensor | None
    slopes: Tensor | None  # [1 or batch, heads]: amount subtracted from scores per position of distance
    lengths: Tensor | None  # [batch] integers: number of valid keys at the start; None: all keys are valid
    seed: Tensor | None  # seed of dropout, one number on the CPU; None: no dropout, or PyTorch's dropout
    key_norms: Tensor | None  # [batch, key heads]: upper bounds of the norms of keys; None: unknown
    alpha_value: float | None  # alpha of all heads; None: alphas differ or could not be read
    scale: float
    causal: bool
    dropout: float
    offset: int = 0  # query i has the position of key i + offset, for causal masks and slopes
    threads: int = 0  # number of threads, the same in forward and backward; 0: PyTorch's number at run time

    @property
    def alpha(self) -> Alpha:
        """Return the tensor of alphas, or the one alpha of all heads."""
        return cast(float, self.alpha_value) if self.alphas is None else self.alphas

    @property
    def differentiable(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Return the first six fields, which may have gradients."""
        return self[:6]

    @property
    def group(self) -> int:
        """Return the number of query heads per key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def seed_value(self) -> int:
        """Return the seed as a number, or 0 without a seed."""
        return 0 if self.seed is None else int(self.seed)


class BestSymbols(NamedTuple):
    """Most probable symbols of each row in one step of a search."""

    log_probs: Tensor  # [rows, count], float64, largest first, without the end symbol; padded with -inf
    symbols: Tensor  # [rows, count]; ties are sorted by symbol
    ends: Tensor  # [rows], float64: log-probability of the end symbol
    support: Tensor  # [rows]: number of symbols with non-zero probability, including the end symbol
    # [rows], float64: sum of the probabilities, which is 1 except for alpha-ReLU. The sum is NaN if a score is NaN. It
    # is infinite if the scores are too large to be distinguished.
    mass: Tensor


class BeamLimits(NamedTuple):
    """Limits on the outputs of a source in a beam search."""

    steps: int  # maximum length, including the end symbol
    free_from: int  # minimum length of a prefix that may end
    prefix: tuple[int, ...]  # symbols that every output starts with


class BeamOptions(NamedTuple):
    """Settings of a beam search, the same for all sources."""

    size: int  # maximum number of prefixes per source
    n_best: int  # number of outputs per source; the search stops when no prefix can lead to a better output
    num_recorded: int  # number of outputs to record per source, plus ties with the last one; 0 records all
    length_penalty: float  # exponent of the length in the score
    competing_ends: bool = False  # whether the end symbol must be among the `size` best continuations of its step


class BeamOutcome(NamedTuple):
    """Prefixes and outputs of a finished beam search.

    Each row is one prefix; rows are in the order of steps. A row's parent is the number of an earlier row.
    """

    tokens: list[int]
    parents: list[int]  # -1 for the first rows
    support: list[int]  # per row: support size in the step that read its token
    num_attended: list[int]
    ends: list[list[tuple[float, int]]]  # outputs per source: log-probability, and the row of the last token
    bounds: list[float]  # largest log-probability of a dropped prefix, per source
    gave_up: list[bool]  # whether a prefix was dropped, per source
    unclear: list[bool]  # whether scores were too large to be distinguished, per source


class AttentionWeights(NamedTuple):
    """Parameters of an attention layer and of its norm; matrices are [outputs, inputs]."""

    norm: tuple[Tensor, Tensor]  # weight and bias
    projection: tuple[Tensor, Tensor]  # projection to query, key and value
    out: tuple[Tensor, Tensor]
    alphas: Tensor  # [heads]


class LayerWeights(NamedTuple):
    """Parameters of a Transformer layer; its feed-forward part uses ReLU."""

    self_attention: AttentionWeights
    cross: AttentionWeights | None  # only in a decoder
    norm: tuple[Tensor, Tensor]
    expand: tuple[Tensor, Tensor]
    shrink: tuple[Tensor, Tensor]


class StackWeights(NamedTuple):
    """Parameters of a Transformer encoder or decoder, float32 on the CPU."""

    embedding: Tensor  # [symbols, d]
    layers: tuple[LayerWeights, ...]
    norm: tuple[Tensor, Tensor] | None  # norm after the last layer; None: each layer normalizes its output
    heads: int
    epsilon: float  # added to the variance in norms


class RecurrentWeights(NamedTuple):
    """Parameters of the decoder of an LSTM or a GRU, float32 on the CPU."""

    cell: str  # "lstm" or "gru"
    embedding: Tensor  # [symbols, size]
    # PyTorch's parameters of each layer. The first layer reads an embedding, and with input feeding the last output.
    layers: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]
    query: tuple[Tensor, Tensor, Tensor] | None  # weight, bias and score [d] of additive attention; None: bilinear
    combine: Tensor  # [d, 2 * d]: from a context and a state to an output, before tanh
    alpha: float  # alpha of the attention


class OutputWeights(NamedTuple):
    """Parameters of an output layer."""

    projection: tuple[Tensor, Tensor]  # weight [symbols, d] and bias, which is -inf for symbols never produced
    alpha: float  # alpha of entmax or alpha-ReLU
    tau: float | None  # threshold of alpha-ReLU; None: entmax


class DecoderResult(NamedTuple):
    """Results of a decoder step."""

    state: Tensor  # [rows, columns], int64: the state after the step
    cache: Tensor  # memory that the state points to
    best: BestSymbols
    num_attended: Tensor  # [rows]: number of source positions with non-zero weight in the last layer
    attention: Tensor | None  # [rows, positions]: mean over the heads of the last layer
    scores: Tensor | None  # [rows, symbols]


class AttentionGradients(NamedTuple):
    """Gradients of the first six arguments of an attention call; None if not requested."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    alphas: Tensor | None
    mask: Tensor | None
    slopes: Tensor | None


TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    float | None: "float?",
    bool: "bool",
    int: "SymInt",
}  # types in the schema of an operator


def schema(container: type[Any]) -> str:
    """Return the fields of a container as operator arguments in PyTorch's schema language.

    Example:
        >>> schema(AttentionGradients)
        'Tensor? query, Tensor? key, Tensor? value, Tensor? alphas, Tensor? mask, Tensor? slopes'
    """
    return ", ".join(f"{TYPES[kind]} {name}" for name, kind in get_type_hints(container).items())


def tensor_count(container: type[Any]) -> int:
    """Return the number of tensors in a container, which are its first fields."""
    kinds = list(get_type_hints(container).values())
    return next((i for i, kind in enumerate(kinds) if kind not in (Tensor, Tensor | None)), len(kinds))
