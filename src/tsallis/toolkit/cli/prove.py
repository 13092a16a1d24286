"""The command `tsallis prove`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tsallis.errors import InputError
from tsallis.search.options import PROOF_OPTIONS, SearchOptions
from tsallis.toolkit.cli.input import input_name, line_blocks
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
from tsallis.toolkit.inference.proofs import AT_LEAST, Rule

REFUTED, UNKNOWN = 1, 3  # exit statuses


@search_options(*PROOF_OPTIONS, modes=("all",))
def prove(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    never: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Regular expression that no output may match as a whole."),
    ] = None,
    always: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Regular expression that every output must match as a whole.")
    ] = None,
    at_least: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Ignore outputs whose probability is below this number (0: consider all outputs)."
        ),
    ] = AT_LEAST,
    ensemble_with: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Prove for each input line that no output matches a pattern, or that every output matches it.

    Pass either --never or --always.

    An input line is `source<TAB>features`, a sentence to translate, a document to classify, or `image<TAB>question`.

    Each row has the line number, the result (proved, refuted or unknown), a lower and an upper bound on the
    probability that the output breaks the rule, and the most probable such output that was found.

    Exit status: 0 if every line is proved, 1 if at least one line is refuted, 3 if no line is refuted but at least one
    is unknown, and 2 after an error.
    """
    rule = Rule.of(never, always, at_least, options)
    opened = open_run(run, checkpoint, device, ensemble_with or ())
    opened.check_command("prove")
    results = set()
    blocks = line_blocks(opened.run, opened.task, file, False, on_error="stop", language=language, images=images)
    try:
        for block in blocks:
            for proof in opened.for_run(block.run).prove_lines(block.lines, rule, block.first):
                results.add(proof.result)
                if as_json:
                    print_json(proof.to_dict())
                else:
                    bounds = (f"{bound:.6g}" for bound in (proof.match.lower, proof.match.upper))
                    print_fields(str(proof.line), proof.result, *bounds, proof.witness or "")
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, so some results are missing
        results.add("unknown")
    if not results:
        raise InputError(f"{input_name(file)}: expected at least one line with text, found none")
    if "refuted" in results or "unknown" in results:
        raise typer.Exit(REFUTED if "refuted" in results else UNKNOWN)
