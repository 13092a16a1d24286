"""Seven synthetic tasks for long contexts, as endless streams: the same seed and number give the same example.

They are those that attention is trained on at few tokens and tested on at many (Vasylenko et al. 2026). The alphabets
of recall, copy, reverse and sort are theirs; the other choices are written at each task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tsallis.toolkit.datasets.split_mix import Random

IGNORE = -100  # of targets: nothing is predicted there
SEPARATOR = 0  # between input and output
LETTERS, SYMBOLS = 256, 32
QUERIES = 4  # of associative recall, at the most
LONGEST_RUN = 16  # of one symbol, in local count
WRITE, SKIP, READ, ZERO = range(4)  # of flip-flop; a one is ZERO + 1


class SyntheticExample(NamedTuple):
    """The tokens of an example, and for each the number that a model shall predict when it has read it."""

    tokens: list[int]
    targets: list[int]  # IGNORE where there is nothing to predict


@dataclass(frozen=True)
class SyntheticTask:
    """A task: how many different numbers its tokens and targets are, its shortest example, and what makes one."""

    name: str
    symbols: int
    shortest: int
    make: Callable[[Random, int], SyntheticExample]


def _with_answer(tokens: list[int], answer: list[int]) -> SyntheticExample:
    """Return an input, the separator and the output, whose tokens are predicted one by one."""
    targets = [IGNORE] * len(tokens) + answer
    return SyntheticExample([*tokens, SEPARATOR, *answer[:-1]], targets)


def _symbols(random: Random, length: int) -> list[int]:
    return [random.between(1, SYMBOLS) for _ in range(length // 2)]


def copied(random: Random, length: int) -> SyntheticExample:
    """Repeat a sequence."""
    tokens = _symbols(random, length)
    return _with_answer(tokens, tokens)


def reversed_(random: Random, length: int) -> SyntheticExample:
    """Repeat a sequence from its end to its beginning."""
    tokens = _symbols(random, length)
    return _with_answer(tokens, tokens[::-1])


def sorted_(random: Random, length: int) -> SyntheticExample:
    """Repeat the symbols of a sequence in ascending order."""
    tokens = _symbols(random, length)
    return _with_answer(tokens, sorted(tokens))


def recall(random: Random, length: int) -> SyntheticExample:
    """Look up several keys in a list of pairs: keys and values have two letters each, and no two keys are the same.

    After the pairs and the separator comes a key, then its value, then the next key: values are predicted.
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
    return SyntheticExample(tokens[:-1], targets[:-1])  # nothing is predicted behind the last value


def two_back(random: Random, length: int) -> SyntheticExample:
    """Name the symbol that stood two places before each."""
    tokens = [random.between(1, SYMBOLS) for _ in range(length)]
    return SyntheticExample(tokens, [IGNORE, IGNORE, *tokens[:-2]])


def local_count(random: Random, length: int) -> SyntheticExample:
    """Count at each token how often its symbol has come since the last other one; runs have up to 16 tokens."""
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
    """Recall the bit that was written last (Liu et al. 2023): instructions to write, skip and read, each with a bit.

    Eight in ten skip; the first writes and the last reads. What a read instruction returns is predicted.
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
        SyntheticTask("copy", SYMBOLS + 1, 2, copied),
        SyntheticTask("reverse", SYMBOLS + 1, 2, reversed_),
        SyntheticTask("sort", SYMBOLS + 1, 2, sorted_),
        SyntheticTask("two-back", SYMBOLS + 1, 3, two_back),
        SyntheticTask("flip-flop", ZERO + 2, 4, flip_flop),
        SyntheticTask("local-count", SYMBOLS + 1, 1, local_count),
    )
}


class SyntheticStream:
    """The examples of a task, without end, of `least` to `most` tokens; lengths have equal probabilities.

    Args:
        name: A key of :data:`SYNTHETIC_TASKS`.
        least: The smallest length.
        most: The largest length.
        seed: The seed of all examples.

    Raises:
        ValueError: If the task is unknown, or has no examples of these lengths.

    Example:
        >>> SyntheticStream("copy", 6, 6).example(0)
        SyntheticExample(tokens=[16, 26, 14, 0, 16, 26], targets=[-100, -100, -100, 16, 26, 14])
    """

    def __init__(self, name: str, least: int, most: int, seed: int = 0) -> None:
        if name not in SYNTHETIC_TASKS:
            raise ValueError(f"the task must be one of {', '.join(SYNTHETIC_TASKS)}, got {name!r}")
        self.task = SYNTHETIC_TASKS[name]
        if least < self.task.shortest:
            raise ValueError(f"examples of {name} have at least {self.task.shortest} tokens, got a length of {least}")
        if most < least:
            raise ValueError(f"most must not be below least, got least {least} and most {most}")
        self.least, self.most, self.seed = least, most, seed

    def example(self, number: int) -> SyntheticExample:
        """Return an example by its number, from 0."""
        length = Random(self.seed ^ number * 0x9E3779B97F4A7C15).between(self.least, self.most)
        mixed = Random(self.seed).below(1 << 62) ^ Random(number + (1 << 32)).below(1 << 62)
        return self.task.make(Random(mixed), length)
