"""The command `tsallis score`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.toolkit.cli.input import LOST, line_blocks, share_blocks
from tsallis.toolkit.cli.options import Device, FileArgument, Images, Json, Language, OnError, RunArgument, Which, With
from tsallis.toolkit.cli.output import print_fields, print_json
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from tsallis.toolkit.inference import TextScore


def score(
    run: RunArgument,
    file: FileArgument = None,
    tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Also print the log-probability of each symbol, and the reason why an output is impossible.",
        ),
    ] = False,
    ensemble_with: With = None,
    language: Language = None,
    images: Images = None,
    on_error: OnError = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Print the log-probability of given outputs; -inf if an output is impossible.

    An input line is `source<TAB>target<TAB>features`, `source<TAB>target`, `label<TAB>text` or
    `image<TAB>question<TAB>answer`. A target may be empty.

    --tokens and --json also print the log-probability of each symbol. For an impossible output, they also print its
    first impossible symbol, how far the score of this symbol is below the threshold, and the symbols possible there.

    If subwords can spell an output in several ways, the probabilities of these ways are summed. The second field of
    the row is `lower bound` if there are too many ways to sum all of them, and `upper bound` if all ways that were
    tried are impossible.

    On several processes: torchrun --nproc-per-node N -m tsallis score RUN FILE
    """
    from tsallis.toolkit.training.distributed import init_distributed

    with init_distributed(device, LOST) as world:
        opened = open_run(run, checkpoint, device, ensemble_with or ())
        loaded, task = opened.run, opened.task
        values: dict[str, Any] = {"language": language, "images": images}
        blocks = line_blocks(loaded, task, file, True, empty_outputs=True, on_error=on_error, **values)
        for block in share_blocks(blocks, world, file):
            for text_score in opened.for_run(block.run).score_lines(block.lines, block.first):
                if as_json:
                    print_json(text_score.to_dict())
                else:
                    print_fields(*_total(text_score), *(_symbol_fields(text_score) if tokens else ()))
            sys.stdout.flush()


def _total(text_score: TextScore) -> list[str]:
    """Return the log-probability. If segmentations are missing from the sum, add the kind of bound."""
    if text_score.scores is None:  # a blank line
        return [""]
    if text_score.possible is None and text_score.text is not None:  # no segmentation was found, but others may exist
        return [f"{text_score.text.log_missing:.6f}", "upper bound"]
    total = f"{text_score.log_prob:.6f}" if text_score.possible else "-inf"
    return [total] if text_score.exact else [total, "lower bound"]


def _symbol_fields(text_score: TextScore) -> list[str]:
    """Return one field per symbol; if a symbol is impossible, add a field that explains it."""
    if text_score.scores is None:
        return []
    content: dict[str, Any] = text_score.to_dict()
    fields = [
        f"{token['symbol']} {token['log_prob']:.6f}" for token in content["tokens"] if token["log_prob"] is not None
    ]
    if (excluded := content["impossible"]) is not None:
        possible_symbols = ", ".join(f"{symbol['symbol']} {symbol['prob']:.6g}" for symbol in excluded["instead"])
        gap = "" if excluded["gap"] is None else f", its score {excluded['gap']:.6g} below the threshold"
        fields.append(f"{excluded['symbol']} impossible{gap}; possible: {possible_symbols or 'nothing'}")
    return fields
