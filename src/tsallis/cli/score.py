"""The command `tsallis score`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import line_blocks, one_batch, open_run
from tsallis.cli.options import Device, FileArgument, Images, Json, Language, RunArgument, Which, With
from tsallis.cli.output import print_fields, print_json

if TYPE_CHECKING:
    from tsallis.search import TokenScores
    from tsallis.training import Run


def score(
    run: RunArgument,
    file: FileArgument = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Each symbol beside the total, and why an output is impossible.")
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
    its score is below the threshold.
    """
    from tsallis.errors import InputError
    from tsallis.evaluation.outputs import describe_tokens
    from tsallis.search import score_tokens

    if tokens and as_json:
        raise InputError("--tokens is for text: --json has every symbol anyway")
    loaded, task = open_run(run, checkpoint, device, others)
    for block in line_blocks(loaded, task, file, True, empty_outputs=True, language=language, images=images):
        for batch in one_batch(block.lines.corpus, loaded.model):
            sources = batch.src, batch.src_lengths
            for row, scores in enumerate(score_tokens(loaded.model, *sources, batch.tgt_in, batch.tgt_out)):
                if as_json:
                    print_json({"line": block.line(row), **describe_tokens(scores, loaded.tgt_vocab)})
                else:
                    total = f"{scores.log_prob:.6f}" if scores.exclusion is None else "-inf"
                    print_fields(total, *(_fields(loaded, scores) if tokens else ()))
        sys.stdout.flush()


def _fields(run: Run, scores: TokenScores) -> list[str]:
    """Return a field for each symbol, and one that says why the last is impossible."""
    from tsallis.evaluation.outputs import describe_tokens

    content: dict[str, Any] = describe_tokens(scores, run.tgt_vocab)
    fields = [
        f"{token['symbol']} {token['log_prob']:.6f}" for token in content["tokens"] if token["log_prob"] is not None
    ]
    if (excluded := content["impossible"]) is not None:
        others = ", ".join(f"{other['symbol']} {other['prob']:.6g}" for other in excluded["instead"])
        gap = "" if excluded["gap"] is None else f", its score {excluded['gap']:.6g} below the threshold"
        fields.append(f"{excluded['symbol']} impossible{gap}; possible: {others or 'nothing'}")
    return fields
