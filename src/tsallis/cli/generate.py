"""The command `tsallis generate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import Block, input_name, line_blocks
from tsallis.cli.options import CompetingEnds, Device, EveryEnd, FileArgument, Json, RunArgument, Temperature, Which
from tsallis.cli.output import print_fields, print_json
from tsallis.inference import open_run
from tsallis.inference.options import SearchOptions, check_temperature, check_tempered_run
from tsallis.inference.run import whole_batch
from tsallis.search_budget import LENGTH, MOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tsallis.data.batching import Batch
    from tsallis.search import GeneratedText, Result
    from tsallis.tasks.base import Task
    from tsallis.training import Run


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
    length: Annotated[int, typer.Option(min=1, max=LENGTH, help="Symbols behind the beginning, at most.")] = 256,
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
    if beam is not None and (samples is not None or seed is not None):
        raise InputError("--beam searches, --samples and --seed are for draws: one of the two")
    if beam is not None and temperature is not None:
        raise InputError("--beam searches, --temperature is for draws: one of the two")
    options = SearchOptions(beam=beam, competing_ends=competing_ends, every_end=every_end)
    options.check()
    check_temperature(temperature)
    if beam is None and options.ends is not None:
        name = "--competing-ends" if competing_ends else "--every-end"
        raise InputError(f"{name} is for --beam: draws end as the model has it")
    opened = open_run(run, checkpoint, device)
    opened.check_command("generate")
    loaded, task = opened.run, opened.task
    check_tempered_run(loaded, temperature)
    search = opened.search.beam(beam, options.ends)
    numbered = prefix is None and (samples or 1) > 1
    blocks = line_blocks(loaded, task, file, False) if prefix is None else _one_block(loaded, task, prefix)
    for block in blocks:
        if len(block.lines.corpus):
            batch = whole_batch(block.lines.corpus, loaded.model)
            if beam is None:
                draws = {"n": samples or 1, "length": length, "temperature": temperature or 1.0}
                _draw(loaded, block, batch, seed or 0, as_json, numbered, **draws)
            else:
                _search(loaded, block, batch, length, search, as_json)
        sys.stdout.flush()


def _one_block(run: Run, task: Task, prefix: str) -> Iterator[Block]:
    yield Block(0, task.read([prefix], "--prefix", run, False), [""])


def _draw(run: Run, block: Block, batch: Batch, seed: int, as_json: bool, numbered: bool, **options: Any) -> None:
    from tsallis.search import generate as draw
    from tsallis.search.sampling import line_seed

    lines = [block.line(row) for row in range(len(block.lines.numbers))]
    seeds = [line_seed(seed, line) for line in lines]
    draws = draw(run.model, batch.src, batch.src_lengths, seeds=seeds, **options)
    for row, (line, texts) in enumerate(zip(lines, draws, strict=True)):
        if as_json:
            print_json({"line": line, "texts": [_describe(run, block, row, text) for text in texts]})
        else:
            for text in texts:
                print_fields(*([str(line)] if numbered else []), _text(run, block, row, text.tokens))


def _search(run: Run, block: Block, batch: Batch, length: int, search: dict[str, Any], as_json: bool) -> None:
    from tsallis.search import beam_search

    results = beam_search(run.model, batch.src, batch.src_lengths, n_best=1, max_length=length, **search)
    for row, result in enumerate(results):
        best, certificate = result.best, result.certificate.kind
        text = "" if best is None else _text(run, block, row, best.tokens)
        if as_json:
            print_json({"line": block.line(row), "text": text, **_proof(result)})
        else:
            print_fields(text, f"{best.prob:.6g}" if best else "0", certificate)


def _proof(result: Result) -> dict[str, Any]:
    from tsallis.evaluation.outputs import finite

    best, certificate = result.best, result.certificate
    log_prob = None if best is None else best.log_prob
    return {"log_prob": log_prob, "certificate": certificate.kind, "bound": finite(certificate.bound)}


def _describe(run: Run, block: Block, row: int, text: GeneratedText) -> dict[str, Any]:
    from tsallis.evaluation.outputs import describe_generated

    return describe_generated(text, _text(run, block, row, text.tokens))


def _text(run: Run, block: Block, row: int, tokens: tuple[int, ...]) -> str:
    """Return a beginning, as it was given, with what follows it."""
    prompt, symbols = block.lines.titles[row], [*map(int, block.lines.corpus.src[row])]
    before, whole = (str(run.tgt_vocab.text(part)) for part in (symbols, [*symbols, *tokens]))
    following = whole.removeprefix(before)
    if before[-1:] != " " == prompt[-1:]:  # subwords hold no space behind a word: the next one begins with it
        following = following.removeprefix(" ")
    return prompt + following
