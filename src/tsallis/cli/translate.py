"""The command `tsallis translate`."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import beam_size_of, line_blocks, one_batch, open_run
from tsallis.cli.options import MOST, MOST_EXPANSIONS, FileArgument, Images, Json, Language, RunArgument, Which
from tsallis.cli.output import print_fields

if TYPE_CHECKING:
    from tsallis.search import Hypothesis, Result
    from tsallis.training import Run

BUDGET = 10_000  # prefixes an exhaustive search may expand a line


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
    every: Annotated[
        bool, typer.Option("--all", help="Every output with a probability, by exhaustive search.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_EXPANSIONS,
            help=f"Prefixes --all may expand a line; default: {BUDGET}, all of which a softmax model takes.",
        ),
    ] = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Outputs for lines: forms of `lemma<TAB>tags`, translations of sentences, labels of documents, or answers to
    `image<TAB>question`.

    Prints the best output a line, after every 64 lines of input. With --nbest above 1 or --all: the number of the
    line, the output, its probability and the certificate, separated by tabs. With both, the search
    ends when the N most probable outputs of all are proved.
    """
    from tsallis.errors import InputError
    from tsallis.search import beam_search, exhaustive

    if every and beam is not None:
        raise InputError("--beam is for beam search: --all searches without a beam (--budget limits it)")
    if budget is not None and not every:
        raise InputError("--budget is for --all")
    loaded, task = open_run(run, checkpoint)
    n_best, many = nbest or 1, every or (nbest or 1) > 1
    size = beam or max(beam_size_of(loaded), n_best)
    for first, lines in line_blocks(loaded, task, file, gold=False, language=language, images=images):
        results: list[Result] = []
        printed = 0
        for batch in one_batch(lines.corpus):
            if every:
                results += exhaustive(loaded.model, batch.src, batch.src_lengths, budget=budget or BUDGET, n_best=nbest)
            else:
                results += beam_search(loaded.model, batch.src, batch.src_lengths, beam_size=size, n_best=n_best)
        for number, result in zip(lines.numbers, results, strict=True):
            _print_nothing(range(first + printed, first + number), as_json, many)
            printed = number + 1
            _print_result(loaded, task.noun, first + printed, result, as_json, many)
        _print_nothing(range(first + printed, first + lines.count), as_json, many)
        sys.stdout.flush()


def _print_nothing(numbers: range, as_json: bool, many: bool) -> None:
    """Print what lines without symbols have for an output: an empty one, and nothing in a list of outputs."""
    for number in numbers:
        if as_json:
            print(json.dumps({"line": number + 1, "certificate": "none", "bound": None, "mass": 0.0, "hypotheses": []}))
        elif not many:
            print()


def _print_result(run: Run, noun: str, line: int, result: Result, as_json: bool, many: bool) -> None:
    if as_json:
        bound = result.certificate.bound
        content = {
            "line": line,
            "certificate": result.certificate.kind,
            "bound": None if bound == float("-inf") else bound,
            "mass": result.mass,
            "hypotheses": [_described(run, h, noun) for h in result.hypotheses],
        }
        text = json.dumps(content, ensure_ascii=False)
        # Controls that JSON takes as they are, and halves of surrogate pairs.
        print(re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text))
    elif many:
        for h in result.hypotheses:
            print_fields(str(line), run.tgt_vocab.text(h.tokens), f"{h.prob:.6g}", result.certificate.kind)
    else:
        print_fields(run.tgt_vocab.text(result.best.tokens) if result.best else "")


def _described(run: Run, hypothesis: Hypothesis, noun: str) -> dict[str, Any]:
    return {
        noun: run.tgt_vocab.text(hypothesis.tokens),
        "prob": hypothesis.prob,
        "log_prob": hypothesis.log_prob,
        "support": hypothesis.support,
        "num_attended": hypothesis.num_attended,
    }
