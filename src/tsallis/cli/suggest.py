"""The command `tsallis suggest`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import line_blocks
from tsallis.cli.keys import Editor, terminal_keys
from tsallis.cli.options import Device, FileArgument, Images, Json, Language, RunArgument, Which, With
from tsallis.cli.output import print_fields, print_json
from tsallis.inference import open_run
from tsallis.inference.suggestions import LISTED, Completer
from tsallis.search_budget import MOST

if TYPE_CHECKING:
    from tsallis.inference import Suggestions
    from tsallis.models.batch import Batch


def suggest(
    run: RunArgument,
    file: FileArgument = None,
    nbest: Annotated[int, typer.Option(min=1, max=MOST, help="Continuations that are listed, the best ones.")] = LISTED,
    others: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Continuations of what is typed of an output: every symbol that may follow, with its probability.

    Lines are those of `tsallis translate`, and may have one column more: what is typed so far. Prints the number of the
    line, the output with the continuation, its probability and `end` where the output is over, or `impossible`. While a
    single continuation is possible it is taken. In a terminal: a line for the source, then keys.
    """
    opened = open_run(run, checkpoint, device, others or ())
    loaded, task = opened.run, opened.task
    completer = Completer(loaded, task, nbest)
    if file is None and not as_json and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        _converse(completer, task.check_options(loaded, {"language": language, "images": images}))
        return
    for block in line_blocks(loaded, task, file, False, None, language=language, images=images):
        rows = {number: row for row, number in enumerate(block.lines.numbers)}
        for number in range(block.lines.count):
            row, line = rows.get(number), block.first + number + 1
            source, typed = (None, "") if row is None else (block.lines.corpus.batch([row]), block.beginnings[row])
            answer = completer.suggest(source, typed, line)
            if as_json:
                print_json(answer.to_dict())
            else:
                for choice in answer.next:
                    end = "end" if choice.ends else ""
                    print_fields(str(answer.line), choice.text, f"{choice.prob:.6g}", end)
                if not answer.possible:
                    print_fields(str(answer.line), typed, "0", "none" if source is None else "impossible")
        sys.stdout.flush()


def _converse(completer: Completer, options: dict[str, Any]) -> None:
    """Ask for sources, and complete their outputs key by key, until the end of the input."""
    from tsallis.errors import InputError

    run, task = completer.run, completer.task
    print(
        f"A line of {task.columns[0]}, then its {task.noun}: Tab completes, arrows choose, Enter ends, Ctrl-C leaves."
    )
    while True:
        try:
            line = input(f"{task.columns[0]}: ").replace("<TAB>", "\t")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        try:
            lines = task.read([line], "the line", run, False, **options)
        except InputError as error:
            print(error)
            continue
        if not lines.numbers:
            continue
        batch = lines.corpus.batch([0])

        def suggestions(typed: str, batch: Batch = batch) -> Suggestions:
            return completer.suggest(batch, typed)

        with terminal_keys() as keys:
            Editor(task.noun, suggestions, keys, sys.stdout).run()
