"""The command `tsallis translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tsallis.errors import InputError, describe
from tsallis.search.options import OPTIONS, SearchOptions
from tsallis.toolkit.cli.input import LOST, Block, input_name, line_blocks, share_blocks, warn_places
from tsallis.toolkit.cli.options import (
    Device,
    FileArgument,
    Images,
    Json,
    Language,
    OnError,
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


PrefixColumn = Annotated[
    bool, typer.Option("--prefix-column", help="Read the last column of each line as the start of its output.")
]
Tokens = Annotated[bool, typer.Option("--tokens", help="With --json: also print each symbol and its log-probability.")]
Alignment = Annotated[
    Literal["largest", "support"] | None,
    typer.Option(
        help="Print an alignment: for each output symbol, the source position with the largest weight (largest), or "
        "all positions with a weight above zero (support)."
    ),
]


@search_options(*OPTIONS)
def translate(
    run: RunArgument,
    options: SearchOptions,
    file: FileArgument = None,
    prefix_column: PrefixColumn = False,
    ensemble_with: With = None,
    language: Language = None,
    images: Images = None,
    on_error: OnError = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    tokens: Tokens = False,
    alignment: Alignment = None,
    as_json: Json = False,
) -> None:
    """Print the model's output for each input line.

    An input line is `source<TAB>features`, a sentence to translate, a document to classify, or `image<TAB>question`.

    By default the best output is printed, one per line. With --exact, --all or --n-best above 1, each row has the line
    number, the output and its probability, separated by tabs. The first row of each line also has the certificate
    of the list. If a line has no output, the output in its row is empty.

    With --mode sample, each row has the line number, the output and its probability, in the order of the draws.
    With --exact or --all, --n-best N stops the search once the N most probable outputs are found and proved.

    --alignment adds a column of position pairs such as `0-0 2-1`. Positions count symbols from 0.

    On several processes: torchrun --nproc-per-node N -m tsallis translate RUN FILE
    """
    if tokens and not as_json:
        raise InputError("--tokens needs --json")
    if options.prefix is not None and prefix_column:
        raise InputError(f"use either --prefix or --prefix-column, not both: got --prefix {describe(options.prefix)}")
    from tsallis.toolkit.training.distributed import init_distributed

    with init_distributed(device, LOST) as world:
        opened = open_run(run, checkpoint, device, ensemble_with or ())
        opened.check_translation(options, alignment)
        name = input_name(file)

        def check(block: Block) -> None:
            opened.for_run(block.run).spell(block.lines, options, block.first, block.beginnings, name)

        input_arguments = opened.run, opened.task, file, False, prefix_column
        probs, empty = as_json or options.returns != "best", list["Answer"]()
        blocks = line_blocks(*input_arguments, check=check, on_error=on_error, language=language, images=images)
        for block in share_blocks(blocks, world, file):
            arguments = block.lines, options, block.first, block.beginnings
            for answer in opened.for_run(block.run).answer(*arguments, name, tokens, alignment, probabilities=probs):
                _print(answer, "json" if as_json else options.returns, alignment is not None)
                if answer.result is not None and answer.best is None:
                    empty.append(answer)
            sys.stdout.flush()
        if empty:
            hint = "; --exact may find one" * (
                options.mode == "beam" and any(x.certificate != "complete" for x in empty)
            )
            warn_places(name, f"the search found no output{hint}", [f"line {x.line}" for x in empty])


def _print(answer: Answer, kind: str, alignment: bool) -> None:
    """Print an answer: as JSON, its best output, the list of its outputs with the certificate, or its draws."""
    if kind == "json":
        print_json(answer.to_dict())
        return
    draws, lists, certificate = kind == "draws", kind == "list", answer.certificate
    for output in (answer.outputs or (None,)) if draws or lists else (answer.best,):
        fields = ["" if output is None else output.text]
        if draws or lists:  # a draw has no probability if it reached a dead end or the maximum length
            prob = f"{output.prob:.6g}" if output else "" if draws else "0"
            fields = [str(answer.line), *fields, prob]
        if lists:
            fields.append(certificate)
            certificate = ""  # only the first row has the certificate, which covers the whole list
        if alignment:
            fields.append("" if output is None else pharaoh(output.alignment or ()))
        print_fields(*fields)
