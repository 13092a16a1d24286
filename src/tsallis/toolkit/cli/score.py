"""The command `tsallis score`."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.toolkit.cli.input import line_blocks
from tsallis.toolkit.cli.options import Device, FileArgument, Images, Json, Language, RunArgument, Which, With
from tsallis.toolkit.cli.output import print_fields, print_json
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from tsallis.toolkit.inference import TextScore


def score(
    run: RunArgument,
    file: FileArgument = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Each symbol beside the total, and why an output is impossible, as in --json."),
    ] = False,
    others: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Log-probabilities of known outputs; -inf where the model excludes one.

    Lines are `lemma<TAB>form<TAB>tags`, `source<TAB>target` for translations, `label<TAB>text` for documents, or
    `image<TAB>question<TAB>answer`; a form or a target may be empty. With --tokens or --json also those of every
    symbol, and of an output that is impossible the first symbol that is, what was possible in its place, and how far
    its score is below the threshold. A text that subwords can spell in several ways has the probability of all of them;
    `lower bound` follows the number if there are more than can be followed, `upper bound` if none was found.
    """
    opened = open_run(run, checkpoint, device, others or ())
    loaded, task = opened.run, opened.task
    for block in line_blocks(loaded, task, file, True, empty_outputs=True, language=language, images=images):
        for known in opened.score_lines(block.lines, block.first):
            if as_json:
                print_json(known.to_dict())
            else:
                print_fields(*_total(known), *(_fields(known) if tokens else ()))
        sys.stdout.flush()


def _total(known: TextScore) -> list[str]:
    """Return the log-probability, and what it is if not all segmentations of a text were followed."""
    if known.scores is None:  # of a blank line
        return [""]
    if known.possible is None and known.text is not None:  # none was found, but some may be left
        return [f"{math.log(known.text.missing):.6f}", "upper bound"]
    total = f"{known.log_prob:.6f}" if known.possible else "-inf"
    return [total] if known.exact else [total, "lower bound"]


def _fields(known: TextScore) -> list[str]:
    """Return a field for each symbol, and one that says why the last is impossible."""
    if known.scores is None:
        return []
    content: dict[str, Any] = known.to_dict()
    fields = [
        f"{token['symbol']} {token['log_prob']:.6f}" for token in content["tokens"] if token["log_prob"] is not None
    ]
    if (excluded := content["impossible"]) is not None:
        others = ", ".join(f"{other['symbol']} {other['prob']:.6g}" for other in excluded["instead"])
        gap = "" if excluded["gap"] is None else f", its score {excluded['gap']:.6g} below the threshold"
        fields.append(f"{excluded['symbol']} impossible{gap}; possible: {others or 'nothing'}")
    return fields
