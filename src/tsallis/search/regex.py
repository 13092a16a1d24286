"""Compile regular expressions and lists of strings to automata over the characters of a vocabulary.

Python's own `re` parses the expressions and decides which characters a set contains, so the syntax is the same. A
package such as `interegular` or `greenery` would add a dependency with its own dialect. `interegular` also needs
seconds for 200 strings, and its last release is of January 2024.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

from tsallis.errors import describe, shorten

STATES = 10_000  # maximum number of states of an automaton
WORK = 5_000_000  # maximum number of steps to find the states
_NEW = sys.version_info >= (3, 11)
_parser = importlib.import_module("re._parser" if _NEW else "sre_parse")
_compiler = importlib.import_module("re._compiler" if _NEW else "sre_compile")
TYPES = re.ASCII | re.UNICODE  # flags that exclude each other
NO_BOUNDARY_IN_NOTHING = bool(re.fullmatch(r"\B", ""))  # depends on the version of Python
CHARACTERS = ("LITERAL", "NOT_LITERAL", "IN", "ANY")  # operations that read one character
UNSUPPORTED = {
    "ASSERT": "look-around (?=...) or (?<=...)",
    "ASSERT_NOT": "negative look-around (?!...) or (?<!...)",
    "FAILURE": "negative look-around (?!)",
    "GROUPREF": "the back-reference to a group",
    "GROUPREF_EXISTS": "the condition (?(group)...)",
    "ATOMIC_GROUP": "the atomic group (?>...)",
    "POSSESSIVE_REPEAT": "a possessive repetition such as *+",
}


class Automaton(NamedTuple):
    """Deterministic automaton that starts in state 0. Characters that it can't distinguish have the same class."""

    next: list[list[int]]  # [states, classes]
    accepts: list[bool]
    classes: dict[str, int]  # class of every character


@dataclass
class _Graph:
    """Non-deterministic automaton. A state reads a character of a set, or continues without reading."""

    empty: list[list[tuple[int, str]]] = field(default_factory=list)  # next states with the anchor in between, or ""
    reads: list[tuple[int, int] | None] = field(default_factory=list)  # number of the set, and the next state
    sets: dict[Any, tuple[int, re.Pattern[str]]] = field(default_factory=dict)
    flags: int = 0  # of the whole expression

    def add(self, *empty: int, anchor: str = "", read: tuple[int, int] | None = None) -> int:
        if len(self.empty) >= 4 * STATES:
            raise ValueError(
                f"it has more than {4 * STATES} states: shorten the expression, or reduce its counts {{n,m}}"
            )
        self.empty.append([(state, anchor) for state in empty])
        self.reads.append(read)
        return len(self.empty) - 1

    def sequence(self, operations: Any, flags: int, end: int) -> int:
        """Add operations that end in a state; return the state before them."""
        for operation, value in reversed(list(operations)):
            end = self.operation(operation, value, flags, end)
        return end

    def operation(self, operation: Any, value: Any, flags: int, end: int) -> int:
        name = str(operation)
        if name in CHARACTERS:
            return self.add(read=(self.set_number(operation, value, flags), end))
        if name == "BRANCH":
            return self.add(*[self.sequence(branch, flags, end) for branch in value[1]])
        if name == "SUBPATTERN":
            _, added, removed, operations = value
            remaining_flags = flags & ~TYPES if added & TYPES else flags
            return self.sequence(operations, (remaining_flags | added) & ~removed, end)
        if name == "AT":
            if flags & re.MULTILINE:
                raise ValueError("the flag m (multiline) is not supported: outputs have one line")
            if "BOUNDARY" in str(value) and (flags ^ self.flags) & re.ASCII:
                raise ValueError("\\b and \\B are not supported in a group with a flag a or u of its own")
            return self.add(end, anchor=str(value))
        if name not in ("MAX_REPEAT", "MIN_REPEAT"):
            raise ValueError(f"{UNSUPPORTED.get(name, name)} is not supported")
        min_count, max_count, operations = value
        if max_count is _parser.MAXREPEAT:
            state = self.add(end)
            self.empty[state].append((self.sequence(operations, flags, state), ""))
        else:
            state = end
            for _ in range(max_count - min_count):
                state = self.add(self.sequence(operations, flags, state), end)
        for _ in range(min_count):
            following, state = state, self.sequence(operations, flags, state)
            if state == following:  # the repeated part is empty
                break
        return state

    def set_number(self, operation: Any, value: Any, flags: int) -> int:
        """Return the number of the set of characters that an operation reads."""
        key = str(operation), repr(value), flags
        if key not in self.sets:
            state = _parser.State()
            state.flags = flags
            pattern = _compiler.compile(_parser.SubPattern(state, [(operation, value)]), flags)
            self.sets[key] = len(self.sets), pattern
        return self.sets[key][0]


def literals(pattern: str) -> list[str]:
    """Return the texts that a valid regular expression spells out, with characters and ends of ranges in its sets.

    >>> literals("ab+(cd|[e-g]h)")
    ['a', 'b', 'cd', 'e', 'g', 'h']
    """

    def texts(operations: Any) -> Iterator[str]:
        text = ""
        for operation, value in operations:
            if str(operation) == "LITERAL":
                text += chr(value)
                continue
            yield text
            text = ""
            if str(operation) in ("NOT_LITERAL", "RANGE"):
                yield from map(chr, (value,) if isinstance(value, int) else value)
            elif str(operation) == "IN":
                for part in value:
                    yield from texts([part])
            else:
                for part in value[1] if str(operation) == "BRANCH" else value[-1:] if isinstance(value, tuple) else ():
                    yield from texts(part)
        yield text

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return [text for text in texts(_parser.parse(pattern)) if text]


def parse(pattern: str) -> tuple[_Graph, int]:
    """Parse a regular expression; return the graph and its first state. The last state is number 0.

    Raises:
        ValueError: The expression is invalid, or has a part that no automaton has.
    """
    graph = _Graph()
    last = graph.add()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # `re` reads [[:alpha:]] and [a&&b] as something else
            tree = _parser.parse(pattern)
        graph.flags = tree.state.flags
        return graph, graph.sequence(tree, graph.flags, last)
    except (re.error, OverflowError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{shorten(pattern)} is not a regular expression: {reason}") from None
    except FutureWarning as warning:
        raise ValueError(
            f"can't use the regular expression {shorten(pattern)}: {str(warning).lower()}; classes such as [:alpha:] "
            "and set operations are not supported: list the characters, or write a backslash before [, &, ~, - or |"
        ) from None
    except ValueError as error:
        raise ValueError(f"can't use the regular expression {shorten(pattern)}: {error}") from None


def compile_regex(pattern: str, characters: Iterable[str]) -> Automaton:
    """Compile a regular expression that must match a whole text, as in `re.fullmatch`.

    Args:
        pattern: Regular expression in the syntax of `re`, without look-around, back-references, atomic groups,
            possessive repetitions and the flag m.
        characters: All characters that texts may contain.

    Raises:
        ValueError: The expression is invalid or not supported, or its automaton has too many states.
    """
    graph, first = parse(pattern)
    anchored = any(anchor for edges in graph.empty for _, anchor in edges)
    classes, signatures = _classify(characters, graph, anchored)
    if "\n" in classes and _reads_break_after_end(graph):
        raise ValueError(
            f"can't use the regular expression {shorten(pattern)}: $ before a part that can match a line break is not "
            "supported: write \\Z for the end of the text"
        )

    members = _classes_of_sets(signatures)
    work = 0

    def spend(steps: int) -> None:
        nonlocal work
        work += steps
        if work > WORK or len(discovered) > STATES:
            limit = f"{STATES} states" if len(discovered) > STATES else f"{WORK} steps to compile"
            raise ValueError(f"the regular expression {shorten(pattern)} needs more than {limit}: simplify it")

    @cache
    def next_states(state: int, before: bool | None) -> list[frozenset[int]]:
        """Return the states after a character of each class, given whether a word character precedes; None: start."""
        reached: list[set[int]] = [set() for _ in signatures]
        for after in (False, True):
            for set_number, target in _next_reads(graph, state, before, after, spend)[0]:
                spend(len(members.get((after, set_number), ())))
                for number in members.get((after, set_number), ()):
                    reached[number].add(target)
        spend(len(signatures))
        return [*map(frozenset, reached)]

    @cache
    def accepts(state: int, before: bool | None) -> bool:
        return _next_reads(graph, state, before, None, spend)[1]

    start: tuple[frozenset[int], bool | None] = frozenset([first]), None
    numbers, discovered = {start: 0}, [start]
    table: list[list[int]] = []
    for states, before in discovered:  # the list grows
        targets = [next_states(state, before) for state in states]
        table.append([])
        for number, signature in enumerate(signatures):
            reached = frozenset().union(*(target[number] for target in targets)), signature[0] if anchored else None
            if reached not in numbers:
                numbers[reached] = len(discovered)
                discovered.append(reached)
            table[-1].append(numbers[reached])
        spend(len(states) * len(signatures))
    return Automaton(table, [any(accepts(q, before) for q in states) for states, before in discovered], classes)


def _classify(
    characters: Iterable[str], graph: _Graph, anchored: bool
) -> tuple[dict[str, int], Sequence[tuple[bool, ...]]]:
    """Return the class of each character, and for each class: whether it has word characters, and is in each set."""
    word = re.compile(r"\w", graph.flags & re.ASCII)
    signatures: dict[tuple[bool, ...], int] = {}
    classes = {}
    for character in characters:
        sets = [bool(matcher.fullmatch(character)) for _, matcher in graph.sets.values()]
        signature = (anchored and bool(word.fullmatch(character)), *sets)
        classes[character] = signatures.setdefault(signature, len(signatures))
    return classes, tuple(signatures)


def _classes_of_sets(signatures: Iterable[tuple[bool, ...]]) -> dict[tuple[bool, int], list[int]]:
    """Return the classes of word characters, and those of other characters, in each set of characters."""
    members: dict[tuple[bool, int], list[int]] = {}
    for number, (after, *sets) in enumerate(signatures):
        for set_number in compress(range(len(sets)), sets):
            members.setdefault((after, set_number), []).append(number)
    return members


def _next_reads(
    graph: _Graph, state: int, before: bool | None, after: bool | None, spend: Callable[[int], None]
) -> tuple[list[tuple[int, int]], bool]:
    """Return what a state can read next, and whether it reaches the last state.

    Args:
        graph: Graph of the states.
        state: Number of the state.
        before: Whether the previous character is a word character; None at the start of the text.
        after: Whether the next character is a word character; None at the end of the text.
        spend: Function that is called with the number of states that were visited.
    """
    seen, waiting, reads = {state}, [state], []
    while waiting:
        state = waiting.pop()
        if (read := graph.reads[state]) is not None:
            reads.append(read)
        for following, anchor in graph.empty[state]:
            if following not in seen and _anchor_holds(anchor, before, after):
                seen.add(following)
                waiting.append(following)
    spend(len(seen))
    return reads, 0 in seen


def _reads_break_after_end(graph: _Graph) -> bool:
    """Return whether a line break can be read after the anchor $, which also holds before a final line break."""
    breaks = {number for number, matcher in graph.sets.values() if matcher.fullmatch("\n")}
    waiting = [state for edges in graph.empty for state, anchor in edges if anchor == "AT_END"]
    seen = set(waiting)
    while waiting:
        state = waiting.pop()
        read = graph.reads[state]
        if read is not None and read[0] in breaks:
            return True
        following = {following for following, _ in graph.empty[state]} - seen
        seen |= following
        waiting += following
    return False


def _anchor_holds(anchor: str, before: bool | None, after: bool | None) -> bool:
    if anchor in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return before is None
    if anchor in ("AT_END", "AT_END_STRING"):
        return after is None
    if anchor in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
        if before is None and after is None:
            return anchor == "AT_NON_BOUNDARY" and NO_BOUNDARY_IN_NOTHING
        return (bool(before) != bool(after)) == (anchor == "AT_BOUNDARY")
    return True


def compile_strings(strings: Sequence[str], characters: Iterable[str]) -> Automaton:
    """Compile a list of strings; a text must contain one of them (Aho and Corasick 1975).

    Raises:
        TypeError: An item is not a string.
        ValueError: The list or a string is empty, or the automaton has too many states.
    """
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"a pattern must be a regular expression or a list of strings, got {describe(string)}")
    if not strings or not all(strings):
        raise ValueError(
            f"a list of strings must have at least one string and no empty strings, got {describe(strings)}"
        )
    letters = {letter: number for number, letter in enumerate(sorted(set("".join(strings))), start=1)}
    children: list[dict[int, int]] = [{}, {}]  # the root, and the state in which a string was found
    match_state = 1
    for string in strings:
        state = 0
        for letter in string[:-1]:
            state = children[state].setdefault(letters[letter], len(children))
            if state == len(children):
                children.append({})
            if state == match_state:
                break
        else:
            children[state][letters[string[-1]]] = match_state
    if len(children) > STATES:
        raise ValueError(f"the list of {len(strings)} strings needs more than {STATES} states: shorten it")
    width = len(letters) + 1
    table = [[0] * width for _ in children]
    table[match_state] = [match_state] * width
    # Breadth first: the row of the longest proper suffix is complete before it is needed.
    waiting, suffixes = deque([0]), {0: 0}
    while waiting:
        state = waiting.popleft()
        fallback = table[suffixes[state]]
        row = [0] * width if state == 0 else list(fallback)
        for number, child in children[state].items():
            if row[number] != match_state:
                row[number] = child
                if child != match_state:
                    suffixes[child] = fallback[number] if state else 0
                    waiting.append(child)
        table[state] = row
    classes = {character: letters.get(character, 0) for character in characters}
    return Automaton(table, [state == match_state for state in range(len(table))], classes)
