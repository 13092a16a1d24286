"""The command `tsallis translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

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
    from tsallis.toolkit.inference import Answer, Output


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
    from tsallis.errors import InputError

    if tokens and not as_json:
        raise InputError("--tokens is for --json")
    if options.prefix is not None and prefix_column:
        raise InputError("--prefix is for all lines, --prefix-column for each its own: one of the two")
    opened = open_run(run, checkpoint, device, others or ())
    opened.check_translation(options, alignment)
    name, writer = input_name(file), Writer(options, as_json, alignment is not None)

    def check(block: Block) -> None:
        opened.spell(block.lines, options, block.first, block.beginnings, name)

    reading = opened.run, opened.task, file, False, prefix_column
    shown = as_json or writer.lists or options.mode == "sample" or options.min_risk
    for block in line_blocks(*reading, check=check, language=language, images=images):
        rows = block.lines, options, block.first, block.beginnings
        answers = opened.answer(*rows, name, tokens, alignment, probabilities=shown)
        writer.write(answers)
        sys.stdout.flush()


class Writer:
    """The printed form of answers."""

    def __init__(self, options: SearchOptions, as_json: bool, alignment: bool = False) -> None:
        self.options = options
        self.as_json = as_json
        self.alignment = alignment

    @property
    def lists(self) -> bool:
        """Whether a line has a list of outputs with a certificate."""
        return not self.options.min_risk and (self.options.mode in ("exact", "all") or (self.options.n_best or 1) > 1)

    def write(self, answers: list[Answer]) -> None:
        """Print answers, and what lines without symbols have in their place."""
        for answer in answers:
            if self.as_json:
                print_json(answer.to_dict())
            elif self.options.mode == "sample" and not self.options.min_risk:
                self._print_draws(answer)
            elif not self.lists:
                print_fields(*self._fields(answer.best))
            else:
                self._print_list(answer)

    def _print_draws(self, answer: Answer) -> None:
        """Print draws; one that met a dead end or the greatest length has no probability."""
        for draw in answer.outputs or (None,):
            text, *more = self._fields(draw)
            print_fields(str(answer.line), text, f"{draw.prob:.6g}" if draw else "", *more)

    def _print_list(self, answer: Answer) -> None:
        """Print outputs beside the line's number; an empty one, where there is none.

        The certificate is about the list as a whole, so that only its first line has it.
        """
        certificate = answer.certificate
        for output in answer.outputs or (None,):
            text, *more = self._fields(output)
            print_fields(str(answer.line), text, f"{output.prob:.6g}" if output else "0", certificate, *more)
            certificate = ""

    def _fields(self, output: Output | None) -> list[str]:
        """Return the text of an output, and the alignment that was asked for."""
        text, pairs = ("", ()) if output is None else (output.text, output.alignment or ())
        return [text, pharaoh(pairs)] if self.alignment else [text]
