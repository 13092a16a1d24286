"""The command `tsallis generate`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tsallis.errors import InputError, describe
from tsallis.search.options import SearchOptions
from tsallis.toolkit.cli.input import Block, input_name, line_blocks, warn_unknown
from tsallis.toolkit.cli.options import Device, FileArgument, Json, RunArgument, Which, search_options
from tsallis.toolkit.cli.output import print_fields, print_json
from tsallis.toolkit.inference import open_run
from tsallis.toolkit.inference.continuations import GENERATION_OPTIONS, MODES, TOKENS


@search_options(
    *GENERATION_OPTIONS,
    modes=MODES,
    help={
        "mode": "Draw random texts (sample, the default) or search for the most probable text (beam).",
        "max_length": f"Maximum number of symbols after the prompt (default: the run's setting, or {TOKENS}).",
    },
)
def generate(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    prefix: Annotated[
        str | None,
        typer.Option(help="Prompt to use instead of FILE; with an empty prompt, the model starts a new text."),
    ] = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Generate texts with a language model.

    Each input line is a prompt; the output repeats it. An empty line starts a new text. By default, each token is
    drawn from all possible tokens, and a text is cut after --max-length symbols. With --num-samples above 1, each
    row starts with the line number, unless --prefix is given.

    With --mode beam, each row has the text, its probability and the certificate, separated by tabs. The certificate
    covers all texts that end within --max-length. If the search finds no text, the row has an empty text.
    """
    if prefix is not None and file is not None:
        raise InputError(f"use either --prefix or FILE, not both: got {describe(prefix)} and {input_name(file)}")
    opened = open_run(run, checkpoint, device)
    opened.check_generation(options)
    numbered = prefix is None and (options.num_samples or 1) > 1
    blocks = line_blocks(opened.run, opened.task, file, False, on_error="stop")  # a blank line is a prompt
    if prefix is not None:
        lines = opened.task.read([prefix], "--prefix", opened.run, False)
        warn_unknown(opened.run, opened.task, lines, "--prefix")
        blocks = iter([Block(0, lines, [""], opened.run)])
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
