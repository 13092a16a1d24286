"""Seven synthetic tasks for long contexts. Each is an infinite stream; an example depends only on seed and number.

The tasks train attention on short examples and test it on long ones (Vasylenko et al. 2026). Recall, copy, reverse and
sort have the same alphabets as in the paper. The docstrings describe the other details of each task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tsallis.errors import check_one_of
from tsallis.toolkit.datasets.split_mix import Random

IGNORE = -100  # target of positions without a prediction
SEPARATOR = 0  # token between input and output
LETTERS, SYMBOLS = 256, 32
QUERIES = 4  # maximum number of queries of associative recall
LONGEST_RUN = 16  # maximum number of repetitions of a symbol in local count
WRITE, SKIP, READ, ZERO = range(4)  # tokens of flip-flop; the bit 1 is ZERO + 1


class SyntheticExample(NamedTuple):
    """Tokens of an example, and the target of each token: the number to predict after reading the token."""

    tokens: list[int]
    targets: list[int]  # IGNORE at positions without a prediction


@dataclass(frozen=True)
class SyntheticTask:
    """Synthetic task: size of its alphabet, its shortest example, and the function that creates examples."""

    name: str
    symbols: int
    shortest: int
    make: Callable[[Random, int], SyntheticExample]


def _make_reordering(order: Callable[[list[int]], list[int]]) -> Callable[[Random, int], SyntheticExample]:
    """Return a function that creates examples: a sequence, a separator, and the sequence in another order."""

    def make(random: Random, length: int) -> SyntheticExample:
        tokens = [random.between(1, SYMBOLS) for _ in range(length // 2)]
        answer = order(tokens)
        return SyntheticExample([*tokens, SEPARATOR, *answer[:-1]], [IGNORE] * len(tokens) + answer)

    return make


def recall(random: Random, length: int) -> SyntheticExample:
    """Return an example of looking up keys in a list of pairs.

    Keys are distinct. Each key and each value has two letters. After the pairs and the separator, some keys follow
    again, each with its value. Only these last values are predicted.
    """
    queries = min(QUERIES, max(1, length // 8))
    pairs: dict[tuple[int, int], tuple[int, int]] = {}

    def letters() -> tuple[int, int]:
        return random.between(1, LETTERS), random.between(1, LETTERS)

    while len(pairs) < (length - 4 * queries) // 4:
        pairs.setdefault(letters(), letters())
    tokens = [token for pair in pairs.items() for part in pair for token in part] + [SEPARATOR]
    targets = [IGNORE] * len(tokens)
    keys = list(pairs)
    for _ in range(queries):
        key = random.choice(keys)
        first, second = pairs[key]
        tokens += [*key, first, second]
        targets += [IGNORE, first, second, IGNORE]
    return SyntheticExample(tokens[:-1], targets[:-1])  # nothing is predicted after the last value


def two_back(random: Random, length: int) -> SyntheticExample:
    """Return an example of copying: the target of a token is the symbol two positions before the token."""
    tokens = [random.between(1, SYMBOLS) for _ in range(length)]
    return SyntheticExample(tokens, [IGNORE, IGNORE, *tokens[:-2]])


def local_count(random: Random, length: int) -> SyntheticExample:
    """Return an example of counting: the target of a token is its position in a run of up to 16 equal symbols."""
    tokens: list[int] = []
    counts: list[int] = []
    while len(tokens) < length:
        symbol = random.between(1, SYMBOLS)
        if tokens and symbol == tokens[-1]:
            continue
        run = min(random.between(1, LONGEST_RUN), length - len(tokens))
        tokens += [symbol] * run
        counts += range(1, run + 1)
    return SyntheticExample(tokens, counts)


def flip_flop(random: Random, length: int) -> SyntheticExample:
    """Return an example of recalling the last written bit (Liu et al. 2023).

    A bit follows each instruction (write, skip or read). 80 % of the instructions skip; the first one
    writes and the last one reads. Only the bits of read instructions are predicted.
    """
    tokens: list[int] = []
    targets: list[int] = []
    memory, instructions = ZERO, length // 2
    for number in range(instructions):
        draw = random.below(10)
        instruction = SKIP if draw < 8 else WRITE if draw == 8 else READ
        instruction = WRITE if number == 0 else READ if number == instructions - 1 else instruction
        bit = memory if instruction == READ else ZERO + random.below(2)
        memory = bit if instruction == WRITE else memory
        tokens += [instruction, bit]
        targets += [bit if instruction == READ else IGNORE, IGNORE]
    return SyntheticExample(tokens, targets)


SYNTHETIC_TASKS = {
    task.name: task
    for task in (
        SyntheticTask("recall", LETTERS + 1, 8, recall),
        SyntheticTask("copy", SYMBOLS + 1, 2, _make_reordering(list)),
        SyntheticTask("reverse", SYMBOLS + 1, 2, _make_reordering(lambda tokens: tokens[::-1])),
        SyntheticTask("sort", SYMBOLS + 1, 2, _make_reordering(sorted)),
        SyntheticTask("two-back", SYMBOLS + 1, 3, two_back),
        SyntheticTask("flip-flop", ZERO + 2, 4, flip_flop),
        SyntheticTask("local-count", SYMBOLS + 1, 1, local_count),
    )
}


class SyntheticStream:
    """Infinite stream of examples of a task. The lengths of examples are uniformly distributed.

    Args:
        name: Key of :data:`SYNTHETIC_TASKS`.
        min_length: Minimum number of tokens.
        max_length: Maximum number of tokens.
        seed: Seed of all examples.

    Raises:
        ValueError: If the task is unknown, or has no examples of these lengths.

    Example:
        >>> SyntheticStream("copy", 6, 6).example(0)
        SyntheticExample(tokens=[16, 26, 14, 0, 16, 26], targets=[-100, -100, -100, 16, 26, 14])
    """

    def __init__(self, name: str, min_length: int, max_length: int, seed: int = 0) -> None:
        check_one_of("name", name, SYNTHETIC_TASKS)
        self.task = SYNTHETIC_TASKS[name]
        if min_length < self.task.shortest:
            raise ValueError(f"min_length must be at least {self.task.shortest} for the task {name}, got {min_length}")
        if max_length < min_length:
            raise ValueError(f"max_length must be at least min_length, {min_length}, got {max_length}")
        self.min_length, self.max_length, self.seed = min_length, max_length, seed

    def example(self, number: int) -> SyntheticExample:
        """Return an example by its number, from 0."""
        length = Random(self.seed ^ number * 0x9E3779B97F4A7C15).between(self.min_length, self.max_length)
        mixed = Random(self.seed).below(1 << 62) ^ Random(number + (1 << 32)).below(1 << 62)
        return self.task.make(Random(mixed), length)
