"""The command `tsallis generate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tsallis.cli.input import Block, input_name, line_blocks
from tsallis.cli.options import CompetingEnds, Device, EveryEnd, FileArgument, Json, RunArgument, Temperature, Which
from tsallis.cli.output import print_fields, print_json
from tsallis.inference import open_run
from tsallis.inference.continuations import TOKENS, GenerationOptions
from tsallis.search_budget import LENGTH, MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tsallis.inference import TextRun


def generate(
    run: RunArgument,
    file: FileArgument = None,
    prefix: Annotated[
        str | None, typer.Option(help="The beginning of the texts, in place of FILE; an empty one: from the start.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Texts that are drawn behind each beginning; default: 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**62, help="Of the draws; default: 0.")] = None,
    temperature: Temperature = None,
    length: Annotated[int, typer.Option(min=1, max=LENGTH, help="Symbols behind the beginning, at most.")] = TOKENS,
    beam: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Search for the most probable text by a beam of this size; draw nothing."),
    ] = None,
    competing_ends: CompetingEnds = False,
    every_end: EveryEnd = False,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Texts of a language model: drawn token by token from the whole support, or the most probable one of a beam.

    Lines are beginnings, with which texts are printed; an empty line is the start of a text. A drawn text that is
    longer than --length is cut. With --samples above 1 the number of the line comes first, but for --prefix. With
    --beam: the text, its probability and the certificate, separated by tabs, among all texts that end within --length;
    an empty text where the beam found none.
    """
    from tsallis.errors import InputError

    if prefix is not None and file is not None:
        raise InputError(f"--prefix stands in place of lines: {input_name(file)} was given, too")
    options = GenerationOptions(
        samples=samples,
        seed=seed,
        temperature=temperature,
        length=length,
        beam=beam,
        competing_ends=competing_ends,
        every_end=every_end,
    )
    options.check()
    opened = open_run(run, checkpoint, device)
    opened.check_generation(options)
    numbered = prefix is None and (samples or 1) > 1
    blocks = line_blocks(opened.run, opened.task, file, False) if prefix is None else _one_block(opened, prefix)
    for block in blocks:
        for answer in opened.continue_lines(block.lines, options, block.first):
            if as_json:
                print_json(answer.to_dict())
            elif answer.result is None:
                for text in answer.texts:
                    print_fields(*([str(answer.line)] if numbered else []), text.text)
            else:
                best = answer.result.best
                print_fields(answer.text, f"{best.prob:.6g}" if best else "0", answer.certificate)
        sys.stdout.flush()


def _one_block(opened: TextRun, prefix: str) -> Iterator[Block]:
    yield Block(0, opened.task.read([prefix], "--prefix", opened.run, False), [""])
