"""The arguments of an operation, in one container from the function that checks them to the kernel that takes them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast, get_type_hints

from torch import Tensor

from tsallis.ops.alphas import Alpha


class AttentionArgs(NamedTuple):
    """The tensors and options of one attention call, checked; tensors come first, those with gradients before all."""

    query: Tensor  # [batch, heads, queries, size]
    key: Tensor  # [batch, key heads, keys, size]
    value: Tensor  # [batch, key heads, keys, value size]
    alphas: Tensor | None  # [1 or batch, heads]; None: all are `alpha_value`
    mask: Tensor | None  # [1 or batch, 1 or heads, 1 or queries, 1 or keys]: True takes part, or added to the scores
    slopes: Tensor | None  # [1 or batch, heads]: what a score loses a key between query and key; None: nothing
    lengths: Tensor | None  # [batch] integers: how many of the first keys take part; None: all
    seed: Tensor | None  # [] on the CPU, of dropout; None: there is none, or PyTorch's own serves
    key_norms: Tensor | None  # [batch, key heads]: at least the largest norms of keys; None: unknown
    alpha_value: float | None  # of all heads; None: alphas differ, or nobody could look at them
    scale: float
    causal: bool
    dropout: float
    offset: int = 0  # query i stands at key i + offset, for the causal order and the slopes
    threads: int = 0  # that tiles are cut for, the same in forward and backward; 0: PyTorch's number when it runs

    @property
    def alpha(self) -> Alpha:
        """The alphas, or the number in their place."""
        return cast(float, self.alpha_value) if self.alphas is None else self.alphas

    @property
    def differentiable(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The first six fields, which may have gradients."""
        return self[:6]

    @property
    def group(self) -> int:
        """The number of heads that read one head of keys."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def seed_value(self) -> int:
        """The seed as a number, 0 where there is none."""
        return 0 if self.seed is None else int(self.seed)


class BestSymbols(NamedTuple):
    """The part of a step's probabilities that a search reads."""

    log_probs: Tensor  # [rows, count], float64: the largest first, without the end's; -inf behind the last
    symbols: Tensor  # [rows, count]; of equal log-probabilities the first symbol comes first
    ends: Tensor  # [rows], float64: log-probability of the end
    support: Tensor  # [rows]: how many symbols have a probability, the end among them
    # [rows], float64: the sum of the probabilities, 1 but for alpha-ReLU; NaN where one of them is, infinite where the
    # scores are too large to be told apart
    mass: Tensor


class BeamLimits(NamedTuple):
    """The outputs of a source that a beam search may find."""

    steps: int  # of the longest one, its end included
    free_from: int  # the length of the prefixes that may end, and may be followed by anything
    prefix: tuple[int, ...]  # the symbols that all of them begin with


class BeamOptions(NamedTuple):
    """The numbers that rule a beam search, the same for all sources."""

    size: int  # prefixes of a source at most
    n_best: int  # outputs of a source that end its search once no prefix can beat them
    num_recorded: int  # the best outputs of a source that are recorded, and those that equal the last; 0: all
    length_penalty: float  # the exponent of the length in scores
    competing_ends: bool = False  # whether an output's end must be one of its step's `size` best continuations


class BeamOutcome(NamedTuple):
    """The rows of all steps of a beam search, one prefix each, and what was found for every source.

    A row's parent is the number of another row; a step's rows stand behind those of the step before it.
    """

    tokens: list[int]
    parents: list[int]  # -1 for the first rows
    support: list[int]  # of the step that read the token
    num_attended: list[int]
    ends: list[list[tuple[float, int]]]  # a source's outputs: log-probability, and the row they end behind
    bounds: list[float]  # the log-probability of a source's best prefix that was dropped
    gave_up: list[bool]  # whether there was one
    unclear: list[bool]  # whether scores of a step of a source were too large to be told apart


class AttentionWeights(NamedTuple):
    """The parameters of an attention and of the norm before or behind it; matrices are [outputs, inputs]."""

    norm: tuple[Tensor, Tensor]  # weight and bias
    projection: tuple[Tensor, Tensor]  # to query, key and value
    out: tuple[Tensor, Tensor]
    alphas: Tensor  # [heads]


class LayerWeights(NamedTuple):
    """The parameters of a Transformer's layer, with ReLU between its last two products."""

    own: AttentionWeights
    cross: AttentionWeights | None  # of a decoder
    norm: tuple[Tensor, Tensor]
    expand: tuple[Tensor, Tensor]
    shrink: tuple[Tensor, Tensor]


class StackWeights(NamedTuple):
    """The parameters of a Transformer's encoder or decoder, float32 on the CPU."""

    embedding: Tensor  # [symbols, d]
    layers: tuple[LayerWeights, ...]
    norm: tuple[Tensor, Tensor] | None  # behind the last layer; None: layers normalise what they return
    heads: int
    epsilon: float  # of the norms


class OutputWeights(NamedTuple):
    """The parameters of an output layer."""

    projection: tuple[Tensor, Tensor]  # [symbols, d]; the bias of what never comes is -inf
    alpha: float  # of the map
    tau: float | None  # its threshold, if it is alpha-ReLU


class DecoderResult(NamedTuple):
    """The results of a step of a Transformer's decoder."""

    state: Tensor  # [rows, columns + 1], int64: the state after it
    cache: Tensor  # memory that this state names
    best: BestSymbols
    num_attended: Tensor  # [rows]: source positions with a weight in the last layer
    attention: Tensor | None  # [rows, positions]: the mean of the last layer's heads
    scores: Tensor | None  # [rows, symbols]


class AttentionGradients(NamedTuple):
    """The gradients of an attention call's first six arguments; None where none was requested."""

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
}  # of an operator's schema


def schema(container: type[Any]) -> str:
    """Return the fields of a container as the arguments in the schema of an operator.

    Example:
        >>> schema(AttentionGradients)
        'Tensor? query, Tensor? key, Tensor? value, Tensor? alphas, Tensor? mask, Tensor? slopes'
    """
    return ", ".join(f"{TYPES[kind]} {name}" for name, kind in get_type_hints(container).items())


def tensor_count(container: type[Any]) -> int:
    """Return how many of the first fields of a container are tensors."""
    kinds = list(get_type_hints(container).values())
    return next((i for i, kind in enumerate(kinds) if kind not in (Tensor, Tensor | None)), len(kinds))
