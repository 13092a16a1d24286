"""The command `tsallis suggest`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.input import line_blocks
from tsallis.toolkit.cli.options import (
    Device,
    FileArgument,
    Images,
    Json,
    Language,
    RunArgument,
    Which,
    With,
    search_options,
)
from tsallis.toolkit.cli.output import print_fields, print_json
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.inference.suggestions import LISTED, Completer

if TYPE_CHECKING:
    from tsallis.toolkit.inference import Suggestions


@search_options("n_best", help={"n_best": "Number of continuations to list, best first."}, n_best=LISTED)
def suggest(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    ensemble_with: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Complete partly typed outputs: print every symbol that may follow, with its probability.

    Input lines are those of `tsallis translate`, with an optional last column: the text typed so far. Each row has the
    line number, the text with its continuation, the probability, and `end` if this continuation ends the output. If
    nothing can follow, the row says `impossible`. If only one continuation is possible, it is added at once.

    In a terminal, the command asks for the source and for the text typed so far.
    """
    opened = open_run(run, checkpoint, device, ensemble_with or ())
    loaded, task = opened.run, opened.task
    completer = Completer(loaded, task, options.n_best or LISTED)
    if file is None and not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        _converse(completer, task.check_options(loaded, {"language": language, "images": images}))
        return
    for block in line_blocks(loaded, task, file, False, None, language=language, images=images):
        rows = {number: row for row, number in enumerate(block.lines.numbers)}
        for number in range(block.lines.count):
            row, line = rows.get(number), block.first + number + 1
            source, typed = (None, "") if row is None else (block.lines.corpus.batch([row]), block.beginnings[row])
            answer = replace(completer, run=block.run).suggest(source, typed, line)
            if as_json:
                print_json(answer.to_dict())
            else:
                _print_suggestions(answer, "" if source is None else "impossible")
        sys.stdout.flush()


def _print_suggestions(answer: Suggestions, otherwise: str = "impossible") -> None:
    """Print one row per continuation: line number, text, probability, `end`. If there is none, print `otherwise`."""
    for choice in answer.next:
        print_fields(str(answer.line), choice.text, f"{choice.prob:.6g}", "end" if choice.ends else "")
    if not answer.possible:
        print_fields(str(answer.line), answer.typed, "0", otherwise)


def _converse(completer: Completer, options: dict[str, Any]) -> None:
    """Ask for a source and for typed texts, and print continuations, until the input ends.

    An empty line ends the typed texts and asks for the next source.
    """
    from tsallis.toolkit.tasks.copying import copy_unknown

    run, task = completer.run, completer.task
    print(f"Type {task.formats[0]}, then the start of the {task.noun}. An empty line: next source. Ctrl-D: end.")
    try:
        while True:
            line = input(f"{task.formats[0]}: ").replace("<TAB>", "\t")
            try:
                extended_run, lines = copy_unknown(task, run, task.read([line], "the line", run, False, **options))
            except InputError as error:
                print(error)
                continue
            if lines.numbers:
                source, typed, completer = lines.corpus.batch([0]), "", replace(completer, run=extended_run)
                _print_suggestions(completer.suggest(source, typed))
                while typed := input(f"{task.noun}: "):
                    _print_suggestions(completer.suggest(source, typed))
    except (EOFError, KeyboardInterrupt):
        print()
