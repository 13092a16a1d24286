"""The command `tsallis translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tsallis.errors import InputError
from tsallis.search.options import OPTIONS, SearchOptions
from tsallis.toolkit.cli.input import Block, input_name, line_blocks
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
from tsallis.toolkit.inference.alignment import pharaoh

if TYPE_CHECKING:
    from tsallis.toolkit.inference import Answer


@search_options(*OPTIONS)
def translate(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    prefix_column: Annotated[
        bool, typer.Option("--prefix-column", help="The last column of a line is the beginning of its output.")
    ] = False,
    others: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="With --json: the string and the log-probability of each symbol, too.")
    ] = False,
    alignment: Annotated[
        Literal["largest", "support"] | None,
        typer.Option(
            help="Pairs source-target: each symbol's largest weight of attention, or all above zero (support)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Outputs for lines: forms of `lemma<TAB>tags`, translations of sentences, labels of documents, or answers to
    `image<TAB>question`.

    Prints the best output of each line. In mode exact and all, and with --n-best above 1: the number of the line, the
    output, its probability and, in the first row of a line's list, the certificate of that list, separated by tabs;
    where there is no output, a row with an empty one. In mode sample: number, output and probability, in the order of
    the draws. --all --n-best N, as --exact --n-best N, ends when the N most probable outputs of all are proved.
    --alignment adds a column with pairs of positions (`0-0 2-1`), which count the run's symbols from 0: subwords, or
    characters and tags.
    """
    if tokens and not as_json:
        raise InputError("--tokens is for --json")
    if options.prefix is not None and prefix_column:
        raise InputError("--prefix is for all lines, --prefix-column for each its own: one of the two")
    opened = open_run(run, checkpoint, device, others or ())
    opened.check_translation(options, alignment)
    name = input_name(file)
    lists = not options.min_risk and (options.mode in ("exact", "all") or (options.n_best or 1) > 1)

    def check(block: Block) -> None:
        opened.spell(block.lines, options, block.first, block.beginnings, name)

    reading = opened.run, opened.task, file, False, prefix_column
    shown = as_json or lists or options.mode == "sample" or options.min_risk
    for block in line_blocks(*reading, check=check, language=language, images=images):
        rows = block.lines, options, block.first, block.beginnings
        for answer in opened.answer(*rows, name, tokens, alignment, probabilities=shown):
            if as_json:
                print_json(answer.to_dict())
            else:
                _print(answer, options, lists, alignment is not None)
        sys.stdout.flush()


def _print(answer: Answer, options: SearchOptions, lists: bool, alignment: bool) -> None:
    """Print the best output of a line, its list with a certificate, or its draws."""
    draws, certificate = options.mode == "sample" and not options.min_risk, answer.certificate
    for output in (answer.outputs or (None,)) if draws or lists else (answer.best,):
        fields = ["" if output is None else output.text]
        if draws or lists:  # a draw that met a dead end or the greatest length has no probability
            prob = f"{output.prob:.6g}" if output else "" if draws else "0"
            fields = [str(answer.line), *fields, prob]
        if lists:
            fields.append(certificate)
            certificate = ""  # it is about the list as a whole
        if alignment:
            fields.append("" if output is None else pharaoh(output.alignment or ()))
        print_fields(*fields)
