"""The command `tsallis translate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.cli.input import Block, check_command, input_name, line_blocks, one_batch, open_run, search_of
from tsallis.cli.options import (
    LENGTH,
    MOST,
    MOST_EXPANSIONS,
    CompetingEnds,
    Device,
    EveryEnd,
    FileArgument,
    Images,
    Json,
    Language,
    LengthPenalty,
    RunArgument,
    Which,
    With,
)
from tsallis.cli.output import print_fields, print_json
from tsallis.cli.search_options import Answer, SearchOptions
from tsallis.search_budget import EXPANSIONS

if TYPE_CHECKING:
    from tsallis.search import Hypothesis, Result
    from tsallis.training import Run


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
    exact: Annotated[
        bool, typer.Option("--exact", help="The most probable output of all, with a proof: best-first search.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every output with a probability, by exhaustive search.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_EXPANSIONS, help=f"Prefixes --all and --exact expand a line; default: {EXPANSIONS}."
        ),
    ] = None,
    time: Annotated[float | None, typer.Option(min=0, help="Seconds that --all and --exact have for a line.")] = None,
    mass: Annotated[
        float | None, typer.Option(min=0, max=1, help="Probability of a line's outputs that --all and --exact end at.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Outputs drawn at random from the model, so many a line.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**62, help="Of --sample's draws; default: 0.")] = None,
    mbr: Annotated[
        bool, typer.Option("--mbr", help="The output of least risk among the beam's, all (--all) or draws (--sample).")
    ] = False,
    prefix: Annotated[str | None, typer.Option(help="The beginning of every output.")] = None,
    prefix_column: Annotated[
        bool, typer.Option("--prefix-column", help="The last column of a line is the beginning of its output.")
    ] = False,
    min_length: Annotated[int | None, typer.Option(min=0, max=LENGTH, help="Symbols of an output, at least.")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, max=LENGTH, help="Symbols of an output, at most; default: twice the source's and 20."),
    ] = None,
    length_penalty: LengthPenalty = None,
    competing_ends: CompetingEnds = False,
    every_end: EveryEnd = False,
    others: With = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Outputs for lines: forms of `lemma<TAB>tags`, translations of sentences, labels of documents, or answers to
    `image<TAB>question`.

    Prints the best output a line. With --nbest above 1, --exact or --all: the number of the line, the output, its
    probability and the certificate, separated by tabs; where there is no output, a line with an empty one. With
    --sample: number, output and probability, in the order of the draws. --all --nbest N, as --exact --nbest N, ends
    when the N most probable outputs of all are proved.
    """
    options = SearchOptions(
        nbest=nbest,
        beam=beam,
        every=every,
        exact=exact,
        budget=budget,
        time=time,
        mass=mass,
        sample=sample,
        seed=seed,
        mbr=mbr,
        prefix=prefix,
        prefix_column=prefix_column,
        min_length=min_length,
        max_length=max_length,
        length_penalty=length_penalty,
        competing_ends=competing_ends,
        every_end=every_end,
    )
    options.check()
    loaded, task = open_run(run, checkpoint, device, others)
    check_command(task, run, "translate")
    options.check_run(loaded)
    defaults, name = search_of(loaded), input_name(file)
    writer = Writer(loaded, task.noun, options, as_json)
    for block in line_blocks(loaded, task, file, False, prefix_column, language=language, images=images):
        lines = [block.line(row) for row in range(len(block.lines.numbers))]
        prefixes = options.spell(loaded, task, block.beginnings, [f"{name}:{line}" for line in lines])
        answers: list[Answer] = []
        for batch in one_batch(block.lines.corpus, loaded.model):
            answers += options.answer(loaded, task, batch, prefixes, lines, defaults)
        writer.write(block, lines, answers)
        sys.stdout.flush()


class Writer:
    """The printed form of a line's answer."""

    def __init__(self, run: Run, noun: str, options: SearchOptions, as_json: bool) -> None:
        self.run, self.noun, self.options, self.as_json = run, noun, options, as_json

    def write(self, block: Block, lines: list[int], answers: list[Answer]) -> None:
        """Print the answers of a block, and what lines without symbols have in their place."""
        by_line = dict(zip(lines, zip(answers, block.beginnings, strict=True), strict=True))
        unknown = dict(zip(lines, block.unknown, strict=False))
        for line in range(block.first + 1, block.first + block.lines.count + 1):
            answer, beginning = by_line.get(line, (None, ""))
            if self.as_json:
                print_json({"line": line, "unknown": unknown.get(line, 0), **self._content(answer, beginning)})
            elif answer is None:
                self._print_nothing(line)
            else:
                self._print(line, answer)

    def _print_nothing(self, line: int, certificate: str = "none") -> None:
        """Print an empty output; in a list of outputs beside the line's number, with what is proved of it."""
        if not self.options.many:
            print()
        elif self.options.sample is not None:
            print_fields(str(line), "", "")
        else:
            print_fields(str(line), "", "0", certificate)

    def _print(self, line: int, answer: Answer) -> None:
        if self.options.mbr:
            print_fields(self._text(answer.choice[0]) if answer.choice else "")
        elif answer.draws is not None:
            for draw in answer.draws:  # one that met a dead end or the greatest length has no probability
                print_fields(str(line), *((self._text(draw), f"{draw.prob:.6g}") if draw else ("", "")))
        else:
            assert answer.result is not None
            certificate = answer.result.certificate.kind
            if answer.result.best is None:
                self._print_nothing(line, certificate)
            elif self.options.many:
                for h in answer.result.hypotheses:
                    print_fields(str(line), self._text(h), f"{h.prob:.6g}", certificate)
            else:
                print_fields(self._text(answer.result.best))

    def _content(self, answer: Answer | None, beginning: str) -> dict[str, Any]:
        """Return what a line's JSON object holds besides its number."""
        content: dict[str, Any] = {}
        start = self.options.prefix if self.options.prefix is not None else beginning
        limits = {**({"prefix": start} if start else {}), **self.options.limits}
        if limits:
            content["limits"] = limits  # the certificate speaks of the outputs within them
        if self.options.mbr:
            content["choice"] = self._describe_choice(answer) if answer and answer.choice else None
        if self.options.sample is not None:
            draws = answer.draws if answer and answer.draws else []
            return {**content, "draws": [self._describe(draw) if draw else None for draw in draws]}
        if answer is None:
            return {**content, "certificate": "none", "bound": None, "mass": 0.0, "hypotheses": []}
        assert answer.result is not None
        return {**content, **self._result(answer.result)}

    def _describe_choice(self, answer: Answer) -> dict[str, Any]:
        assert answer.choice is not None
        hypothesis, choice = answer.choice
        proved = choice.proved and answer.draws is None
        return {**self._describe(hypothesis), "expected_utility": choice.expected_utility, "proved": proved}

    def _result(self, result: Result) -> dict[str, Any]:
        from tsallis.evaluation.outputs import describe_result

        content = describe_result(result, self.run.tgt_vocab, self.noun)
        if not (self.options.every or self.options.exact):
            del content["stopped_by"], content["expanded"]
        return content

    def _describe(self, hypothesis: Hypothesis) -> dict[str, Any]:
        from tsallis.evaluation.outputs import describe_hypothesis

        return describe_hypothesis(hypothesis, self.run.tgt_vocab, self.noun, self.options.length_penalty or 0)

    def _text(self, hypothesis: Hypothesis) -> str:
        return str(self.run.tgt_vocab.text(hypothesis.tokens))
