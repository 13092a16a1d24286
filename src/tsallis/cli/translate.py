"""The command `tsallis translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tsallis.cli.input import Block, input_name, line_blocks
from tsallis.cli.options import (
    CompetingEnds,
    Device,
    EveryEnd,
    FileArgument,
    Images,
    Json,
    Language,
    LengthPenalty,
    RunArgument,
    Temperature,
    Which,
    With,
)
from tsallis.cli.output import print_fields, print_json
from tsallis.inference import open_run
from tsallis.inference.alignment import pharaoh
from tsallis.inference.options import SearchOptions
from tsallis.search_budget import EXPANSIONS, LENGTH, MOST, MOST_EXPANSIONS

if TYPE_CHECKING:
    from tsallis.inference import Answer, Output


def translate(
    run: RunArgument,
    file: FileArgument = None,
    nbest: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="The best outputs of a line, so many; default: 1, or with --all every one."),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Beam size; default: the run's, or as many as --nbest if that is more."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="The most probable output of all, with a proof: best-first search.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every output with a probability, by exhaustive search.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_EXPANSIONS, help=f"Prefixes --all and --exact expand a line; default: {EXPANSIONS}."
        ),
    ] = None,
    time: Annotated[float | None, typer.Option(min=0, help="Seconds that --all and --exact have for a line.")] = None,
    mass: Annotated[
        float | None, typer.Option(min=0, max=1, help="Probability of a line's outputs that --all and --exact end at.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Outputs drawn at random from the model, so many a line.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**62, help="Of --sample's draws; default: 0.")] = None,
    temperature: Temperature = None,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="The output of least risk among the beam's, all (--all) or draws (--sample).")
    ] = False,
    prefix: Annotated[str | None, typer.Option(help="The beginning of every output.")] = None,
    prefix_column: Annotated[
        bool, typer.Option("--prefix-column", help="The last column of a line is the beginning of its output.")
    ] = False,
    min_length: Annotated[
        int | None, typer.Option(min=0, max=LENGTH, help="Symbols of an output, at least; default: the run's.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1, max=LENGTH, help="Symbols of an output, at most; default: the run's, or twice the source's + 20."
        ),
    ] = None,
    length_penalty: LengthPenalty = None,
    competing_ends: CompetingEnds = False,
    every_end: EveryEnd = False,
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

    Prints the best output a line. With --nbest above 1, --exact or --all: the number of the line, the output, its
    probability and, in the first row of a line's list, the certificate of that list, separated by tabs; where there is
    no output, a row with an empty one. With --sample: number, output and probability, in the order of the draws. --all
    --nbest N, as --exact --nbest N, ends when the N most probable outputs of all are proved. --alignment adds a column
    with pairs of positions (`0-0 2-1`), which count the run's symbols from 0: subwords, or characters and tags.
    """
    from tsallis.errors import InputError

    if tokens and not as_json:
        raise InputError("--tokens is for --json")
    options = SearchOptions(
        nbest=nbest,
        beam=beam,
        every=every,
        exact=exact,
        budget=budget,
        time=time,
        mass=mass,
        sample=sample,
        seed=seed,
        temperature=temperature,
        mbr=mbr,
        prefix=prefix,
        prefix_column=prefix_column,
        min_length=min_length,
        max_length=max_length,
        length_penalty=length_penalty,
        competing_ends=competing_ends,
        every_end=every_end,
    )
    options.check()
    opened = open_run(run, checkpoint, device, others or ())
    opened.check_translation(options, alignment)
    name, writer = input_name(file), Writer(options, as_json, alignment is not None)

    def check(block: Block) -> None:
        opened.spell(block.lines, options, block.first, block.beginnings, name)

    reading, shown = (opened.run, opened.task, file, False, prefix_column), as_json or options.many or options.mbr
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

    def write(self, answers: list[Answer]) -> None:
        """Print answers, and what lines without symbols have in their place."""
        for answer in answers:
            if self.as_json:
                print_json(answer.to_dict())
            elif self.options.sample is not None and not self.options.mbr:
                self._print_draws(answer)
            elif not self.options.many:
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
