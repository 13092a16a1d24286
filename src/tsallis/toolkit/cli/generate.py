"""The command `tsallis generate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tsallis.errors import InputError
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.input import Block, input_name, line_blocks
from tsallis.toolkit.cli.options import Device, FileArgument, Json, RunArgument, Which, search_options
from tsallis.toolkit.cli.output import print_fields, print_json
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.inference.continuations import MODES, OF_GENERATION, TOKENS


@search_options(
    *OF_GENERATION,
    modes=MODES,
    help={
        "mode": "Draw texts (sample), or search for the most probable one (beam); default: sample.",
        "max_length": f"Number of symbols behind the beginning, at most; default: the run's, or {TOKENS}.",
    },
)
def generate(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    prefix: Annotated[
        str | None, typer.Option(help="The beginning of the texts, in place of FILE; an empty one: from the start.")
    ] = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Texts of a language model: drawn token by token from the whole support, or the most probable one of a beam.

    Lines are beginnings, with which texts are printed; an empty line is the start of a text. A drawn text that is
    longer than --max-length is cut. With --num-samples above 1 the number of the line comes first, but for --prefix.
    With --mode beam: the text, its probability and the certificate, separated by tabs, among all texts that end within
    --max-length; an empty text where the beam found none.
    """
    if prefix is not None and file is not None:
        raise InputError(f"--prefix stands in place of lines: {input_name(file)} was given, too")
    opened = open_run(run, checkpoint, device)
    opened.check_generation(options)
    numbered = prefix is None and (options.num_samples or 1) > 1
    blocks = line_blocks(opened.run, opened.task, file, False)
    if prefix is not None:
        blocks = iter([Block(0, opened.task.read([prefix], "--prefix", opened.run, False), [""])])
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
