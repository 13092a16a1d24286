"""Read the input lines of commands, from a file or from standard input."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from tsallis.errors import InputError, OptionError, one_line, shorten
from tsallis.symbols import UNK
from tsallis.toolkit.inference.run import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.tasks.types import Lines
    from tsallis.toolkit.training import Run
    from tsallis.toolkit.training.distributed import World

STDIN = "standard input"  # name of standard input in messages
BAD_LINES = 1  # exit status after bad lines were skipped
MAX_NAMED = 5  # maximum number of unknown symbols named in a warning


def input_name(file: Path | None) -> str:
    """Return the name of an input file in messages; None and `-` mean standard input."""
    return STDIN if is_stdin(file) else str(file)


def is_stdin(file: Path | None) -> bool:
    """Return whether lines come from standard input."""
    return file is None or str(file) == "-"


class Block(NamedTuple):
    """Lines of input that are answered together."""

    first: int  # number of the first line, from 0
    lines: Lines
    beginnings: list[str]  # text that each row's output starts with, if lines have such a column
    run: Run  # run that answers the lines, see `copy_unknown`


def read_all(run: Run, task: Task, file: Path | None, gold: bool, **options: Any) -> tuple[Run, Lines]:
    """Read all lines of a file, or of standard input; return the run that answers them, and the lines."""
    from tsallis.toolkit.tasks.copying import copy_unknown

    with _open_lines(task.formats[gold], file) as (lines, name, _):
        encoded = task.read(list(lines), name, run, gold, **task.check_options(run, options))
    if not len(encoded.corpus):
        raise InputError(f"{name}: expected lines of {task.formats[gold]}, found none")
    encoded.ignored.warn(name)
    run, encoded = copy_unknown(task, run, encoded)
    warn_unknown(run, task, encoded, name)
    return run, encoded


def warn_unknown(run: Run, task: Task, lines: Lines, name: str) -> None:
    """Print a note if lines have source symbols that are unknown to the run; `name` is the name of the input."""
    unknown_symbols = UnknownSymbols(run, task)
    unknown_symbols.add(Block(0, lines, [], run))
    unknown_symbols.warn(name)


def read_text_lines(file: Path) -> list[str]:
    """Read all lines of a file, or of standard input, as text."""
    with _open_lines("text", file) as (lines, _, _):
        return list(lines)


class UnknownSymbols:
    """Counter of unknown symbols, for one warning about all lines."""

    def __init__(self, run: Run, task: Task) -> None:
        self.run, self.task = run, task
        self.total = 0
        self.first_lines: dict[str, int] = {}  # line number of each symbol, at least for the named symbols
        self.impossible: list[int] = []  # numbers of the lines with unknown target symbols

    def add(self, block: Block) -> None:
        """Count the unknown symbols of a block."""
        lines = block.lines
        for row, number in enumerate(lines.numbers):
            if UNK in lines.corpus.tgt[row]:
                self.impossible.append(block.first + number + 1)
            self.total += (count := self.task.count_unknown(lines.corpus.src[row]))
            if count and len(self.first_lines) <= MAX_NAMED:
                source = [int(symbol) for symbol in lines.corpus.src[row]]
                for symbol in self.task.unknown_symbols(self.run, source, lines.titles[row]):
                    self.first_lines.setdefault(symbol, block.first + number + 1)

    @contextlib.contextmanager
    def warn_on_error(self, name: str) -> Iterator[None]:
        """Print the warning about the answered lines before an error is raised."""
        try:
            yield
        except InputError:
            self.warn(name)
            raise

    def warn(self, name: str) -> None:
        """Print the number of unknown symbols of the input `name`, and the first few places."""
        folder = self.run.folder
        if self.total:
            places = [f"{shorten(symbol)} on line {line}" for symbol, line in self.first_lines.items()]
            symbols = f"{self.total} source symbol is" if self.total == 1 else f"{self.total} source symbols are"
            warn_places(name, f"{symbols} unknown to {folder} and read as <unk>", places)
        if outputs := self.impossible:
            subject = "1 output has" if len(outputs) == 1 else f"{len(outputs)} outputs have"
            message = f"{subject} symbols that are unknown to {folder}, so the run can't predict them"
            warn_places(name, message, [f"line {line}" for line in outputs])


def warn_places(name: str, message: str, places: Sequence[str]) -> None:
    """Print a note about the input `name`, and the first few of its places."""
    named = ", ".join([*places[:MAX_NAMED], *(["..."] if len(places) > MAX_NAMED else [])])
    print(one_line(f"tsallis: {name}: {message}: {named}"), file=sys.stderr)


class SkippedLines:
    """Counter of bad lines, which prints the error of each bad line."""

    count = 0

    def __call__(self, error: InputError) -> None:
        self.count += 1
        print(one_line(f"tsallis: {error}"), file=sys.stderr)


def line_blocks(
    run: Run,
    task: Task,
    file: Path | None,
    gold: bool,
    beginnings: bool | None = False,
    empty_outputs: bool = False,
    check: Callable[[Block], object] = lambda block: None,
    on_error: Literal["stop", "skip"] | None = None,
    **options: Any,
) -> Iterator[Block]:
    """Read lines in blocks of up to 64.

    A block of standard input contains only available lines, so that they are answered at once. If a line is bad, the
    lines before it are yielded, then its error is raised. If bad lines are skipped, the error is printed instead, the
    line counts as blank, and the command ends with status 1. Unknown symbols and ignored input are reported at the end.

    Args:
        run: Run whose vocabularies are used, and its `task`.
        file: Input file; None or `-` for standard input.
        gold: Whether lines contain the reference output.
        beginnings: Whether the last column is the beginning of the output; None: only if there is an extra column.
        empty_outputs: Whether the reference may be empty, if the task allows it.
        check: Function that raises InputError if a block has a line that can't be answered.
        on_error: Whether to "stop" at a bad line or to "skip" it; None: "skip" for standard input, "stop" for files.
        options: Options of the task.
    """
    from tsallis.toolkit.data.io import Ignored
    from tsallis.toolkit.tasks.copying import copy_unknown

    expected = task.formats[gold] + ("<TAB>beginning" if beginnings else "")
    values = task.check_options(run, options) | ({"empty": True} if empty_outputs and task.empty_outputs else {})
    unknown_symbols, ignored, skipped = UnknownSymbols(run, task), Ignored(), SkippedLines()
    skip = skipped if (on_error or ("skip" if is_stdin(file) else "stop")) == "skip" else None
    with _open_lines(expected, file, skip) as (lines, name, ready):

        def read(block: list[str], first: int) -> Block:
            texts = [""] * len(block)
            if beginnings is not False:
                columns = task.formats[gold].count("<TAB>") + 1
                split = _split_last(block, columns, f"{name}:{{}}: expected {expected}", first, beginnings is None)
                block, texts = map(list, zip(*split, strict=True))
            extended_run, encoded = copy_unknown(task, run, task.read(block, name, run, gold, first, **values))
            answered = Block(first, encoded, [texts[number] for number in encoded.numbers], extended_run)
            check(answered)
            return answered

        first = 0
        with unknown_symbols.warn_on_error(name):
            for texts in _blocks(lines, ready):
                for block in _good_lines(texts, first, read, skip):
                    unknown_symbols.add(block)
                    ignored.ends += block.lines.ignored.ends
                    ignored.answers += gold and sum(len(task.answers(text)) > 1 for text in block.lines.references)
                    yield block
                first += len(texts)
    ignored.warn(name)
    unknown_symbols.warn(name)
    if skipped.count:
        raise typer.Exit(BAD_LINES)


LOST = "the printed lines are correct, the remaining lines are missing"  # end of the error if a process is lost


def share_blocks(blocks: Iterator[Block], world: World, file: Path | None) -> Iterator[Block]:
    """Yield the blocks that this process answers; the first process prints all answers in order.

    Every process reads all lines. The processes take turns in answering blocks.
    """
    from tsallis.toolkit.training.distributed import CommonError

    if world.size == 1:
        yield from blocks
        return
    with world.share_errors():
        if is_stdin(file):
            raise InputError("several processes can't read standard input: pass a file")
    failure: Exception | None = None
    while failure is None:
        group: list[Block] = []
        with contextlib.redirect_stderr(sys.stderr if world.main else io.StringIO()):
            try:
                while len(group) < world.size:
                    group.append(next(blocks))
            except (InputError, StopIteration, typer.Exit) as error:  # all processes raise the same error
                failure = error
        answers = io.StringIO()
        if world.rank < len(group):
            with contextlib.redirect_stdout(answers):
                yield group[world.rank]
        for text in world.gather(answers.getvalue()):
            if world.main:
                sys.stdout.write(text)
        sys.stdout.flush()
    if isinstance(failure, InputError):
        raise CommonError(str(failure)) from failure
    if isinstance(failure, typer.Exit):
        raise failure


def _good_lines(
    lines: list[str], first: int, read: Callable[[list[str], int], Block], skip: Callable[[InputError], object] | None
) -> Iterator[Block]:
    """Yield lines as one block.

    If a line is bad, pass its error to `skip` and make the line blank. Without `skip`, yield the lines before the bad
    line, then raise its error.
    """
    try:
        block = read(lines, first)
    except OptionError:
        raise
    except InputError as block_error:
        good = [*lines]
        for number, line in enumerate(lines):
            try:
                read([line], first + number)
            except InputError as error:
                if skip is None:
                    if number:
                        yield read(lines[:number], first)
                    raise
                skip(error)
                good[number] = ""
        if good == lines:
            raise block_error
        block = read(good, first)
    yield block


def _split_last(block: list[str], columns: int, message: str, first: int, optional: bool) -> Iterator[tuple[str, str]]:
    """Yield each line without its last column, and that column."""
    for number, line in enumerate(block, start=first + 1):
        if not line.strip():
            yield "", ""
        elif (tabs := line.count("\t")) < columns:
            if not optional:
                raise InputError(f"{message.format(number)}, found {tabs + 1} column{'s' * (tabs > 0)}")
            yield line, ""
        else:
            input_line, _, beginning = line.rpartition("\t")
            yield input_line, beginning.removesuffix("\r")


def _blocks(lines: Iterator[str], ready: Callable[[], bool]) -> Iterator[list[str]]:
    """Yield blocks: the next line and up to 63 more available lines. Raise an error after the last block."""
    stop: Exception | None = None
    while stop is None:
        block: list[str] = []
        try:
            while len(block) < BLOCK and (not block or ready()):
                block.append(next(lines))
        except Exception as error:
            stop = error
        if block:
            yield block
    if not isinstance(stop, StopIteration):
        raise stop


class LineReader:
    """Reader of the lines of a pipe or a terminal, which also reports whether another line is available."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.buffer = b""
        self.ended = False

    def readline(self, size: int = sys.maxsize, /) -> bytes:
        """Return the next line, or its first `size` bytes; empty at the end of the input."""
        while b"\n" not in self.buffer and len(self.buffer) < size and self._fill():
            pass
        end = min(self.buffer.find(b"\n") + 1 or len(self.buffer), size)
        line, self.buffer = self.buffer[:end], self.buffer[end:]
        return line

    def read(self, size: int = -1, /) -> bytes:
        raise NotImplementedError("only readline is supported")

    def ready(self) -> bool:
        """Return whether `readline` would return at once, with a line or with the start of a line that is too long."""
        from tsallis.toolkit.data.io import LONGEST

        while not (found := b"\n" in self.buffer or len(self.buffer) > LONGEST) and not self.ended:
            if not select.select([self.handle], [], [], 0)[0]:
                return False
            self._fill()
        return found or bool(self.buffer)

    def _fill(self) -> bool:
        """Wait for bytes and add them to the buffer; return False at the end of the input."""
        chunk = b"" if self.ended else os.read(self.handle, 1 << 16)
        self.buffer += chunk
        self.ended = not chunk
        return not self.ended


@contextlib.contextmanager
def _open_lines(
    expected: str, file: Path | None, skip: Callable[[InputError], object] | None = None
) -> Iterator[tuple[Iterator[str], str, Callable[[], bool]]]:
    """Open a file or standard input. Yield its lines, its name, and a function that checks for another line."""
    from tsallis.toolkit.data.io import decode_lines, decompress, input_errors, open_file

    if file is not None and not is_stdin(file):
        with open_file(file) as stream, input_errors(file):
            yield decode_lines(decompress(stream, file), str(file), expected, skip), str(file), lambda: True
        return
    if sys.stdin is None:
        raise InputError("standard input is closed: pass a file")
    name = STDIN
    try:
        reader = LineReader(sys.stdin.buffer.fileno())
    except OSError:  # without a file descriptor, all lines are available
        yield decode_lines(sys.stdin.buffer, name, expected, skip), name, lambda: True
    else:
        with input_errors(name):
            yield decode_lines(reader, name, expected, skip), name, reader.ready
