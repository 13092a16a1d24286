"""The answers of a run: searches, completions, the steps of an output, attention, and a description."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from tsallis.analysis import AttentionReader, Sentence, beam_tree, read_model, record
from tsallis.analysis.head_names import choose_heads, head_name
from tsallis.errors import OptionError, describe
from tsallis.models.batch import Batch
from tsallis.models.modes import eval_mode
from tsallis.models.protocol import count_attended
from tsallis.search import GeneratedText, Hypothesis, Result, SearchOptions, TokenScores
from tsallis.search.step import advance
from tsallis.search.texts import TextProbability
from tsallis.symbols import BOS, EOS, UNK
from tsallis.toolkit.data.packing import TextCorpus
from tsallis.toolkit.evaluation.outputs import describe_text, finite
from tsallis.toolkit.evaluation.text_probabilities import complete_results, score_outputs
from tsallis.toolkit.inference.answers import Answer, Form, Output
from tsallis.toolkit.inference.continuations import draw_texts
from tsallis.toolkit.inference.proofs import Proof
from tsallis.toolkit.inference.run import batch_corpus
from tsallis.toolkit.inference.searching import check_for_run, choose, draw, search, spell_prefixes
from tsallis.toolkit.inference.suggestions import LISTED, Completer
from tsallis.toolkit.serve.limits import MAX_HEADS, Limits, Refusal
from tsallis.toolkit.serve.requests import (
    AttentionRequest,
    OutputRequest,
    Request,
    RuleRequest,
    SearchRequest,
    StepsRequest,
    SuggestRequest,
)
from tsallis.toolkit.serve.worker import Check, InterruptibleModel
from tsallis.toolkit.tasks.base import Task, refuse_long
from tsallis.toolkit.tasks.copying import copy_unknown
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training import Run
from tsallis.toolkit.training.run_folder import describe_run

ROWS = 512  # number of prefixes in a batch of the model
TIME_SHARE = 0.8  # share of a request's time that searches may use
MIN_TIME = 1e-3  # smallest time limit of a search, in seconds
Content = dict[str, Any]


def _time_shares(seconds: float, count: int) -> Iterator[float]:
    """Yield the time limits of `count` searches; time that a search saves or overruns changes the later limits."""
    deadline = time.monotonic() + seconds
    for remaining in range(count, 0, -1):
        yield max(MIN_TIME, (deadline - time.monotonic()) / remaining)


@dataclass(frozen=True)
class ServedRun:
    """A run that answers requests. Models are not thread-safe, so one thread must call all methods that use the model.

    Args:
        name: Name of the run in requests.
        run: Run with the model.
        task: Task of the run.
        search: Default values of search options that a request does not set.
        limits: Limits of the server.
        checkpoint: Checkpoint of the model.
        examples: Example lines for the page.
    """

    name: str
    run: Run
    task: Task
    search: SearchOptions
    limits: Limits
    checkpoint: str = "best"
    examples: tuple[str, ...] = ()

    @cached_property
    def facts(self) -> Content:
        """Return the description of the run as a JSON object."""
        metrics = self.run.facts.get("metrics", {})
        layers = self._reader.layers if self._reader else ()
        return {
            **describe_run(self.run),
            "name": self.name,
            "noun": self.task.noun,
            "columns": self.task.formats[0].split("<TAB>"),
            "languages": getattr(self.task, "languages", None),
            "parameters": sum(parameter.numel() for parameter in self.run.model.parameters()),
            "symbols": {"source": len(self.run.src_vocab), "target": len(self.run.tgt_vocab)},
            "normalized": self.run.model.output.normalized,
            "checkpoint": self.checkpoint,
            "step": int(self.run.facts.get("step", 0)),
            "metrics": {name: finite(value) for name, value in metrics.items() if isinstance(value, int | float)},
            "search": self.search.given,
            "examples": self.examples,
            "attention": [{"kind": x.kind, "layer": x.layer + 1, "alphas": x.alphas} for x in layers],
        }

    @cached_property
    def _reader(self) -> AttentionReader | None:
        try:
            return read_model(self.run.model, self.run.src_vocab, self.run.tgt_vocab)
        except ValueError:
            return None

    def key(self, request: SearchRequest) -> Hashable:
        """Return the key of a search, or None if it must run alone. Searches with equal keys can share a batch.

        Exact searches run alone, because other searches in the batch would use up the time.
        """
        return None if request.options.mode in ("exact", "all") else (self.name, "translate", request.key)

    def translate(self, requests: Sequence[SearchRequest], check: Check) -> list[Content]:
        """Answer requests with the same key in one search."""
        first = requests[0]
        lines = [self._read(request.sources, request) for request in requests]
        options = self._options(first)
        rows = [(part, row) for part in lines for row in range(len(part.numbers))]
        row_answers = iter(self._answer_rows(options, first.tree, rows, check))
        form = Form(self.run.tgt_vocab, options)
        contents = []
        for part in lines:
            answers = {number: Answer(number + 1, _form=form).to_dict() for number in range(part.count)}
            answers.update({number: next(row_answers) for number in part.numbers})
            contents.append([*answers.values()])
        return [{"run": self.name, "mode": options.mode, "answers": part} for part in contents]

    def _answer_rows(
        self, options: SearchOptions, tree: bool, rows: Sequence[tuple[Lines, int]], check: Check
    ) -> list[Content]:
        """Return the answer to each row of lines. A row with unknown symbols that the run can copy is searched alone.

        So its symbols have the same numbers as in other requests about the source.
        """
        answers: list[Content] = []
        batched: list[tuple[int, Any]] = []  # position of an answer, and a row for `_search`
        shares = _time_shares(TIME_SHARE * self.limits.seconds, len(rows))
        for position, (lines, row) in enumerate(rows):
            served, source, number = self, lines.corpus.src[row], lines.numbers[row] + 1
            if UNK in source:
                served, reencoded = self._with_copies(lines.select([row]))
                source = reencoded.corpus.src[0]
            if served is self:
                answers.append({})
                batched.append((position, (source, number)))
            else:
                answers += served._search(options, tree, [(source, number)], check, shares)
        searched = self._search(options, tree, [row for _, row in batched], check, shares)
        for (position, _), answer in zip(batched, searched, strict=True):
            answers[position] = answer
        return answers

    def _with_copies(self, lines: Lines) -> tuple[ServedRun, Lines]:
        """Return a run whose vocabulary contains the unknown symbols that it can copy, and the lines encoded for it."""
        run, lines = copy_unknown(self.task, self.run, lines)
        return self if run is self.run else replace(self, run=run), lines

    def _options(self, request: SearchRequest) -> SearchOptions:
        """Return the options of a request, with the run's options as defaults.

        Raises:
            OptionError: If the run doesn't support an option.
        """
        check_for_run(request.options, self.run)
        if request.options.pattern is not None and not self.task.searched:
            raise Refusal(400, "pattern can't be used with a language model")
        options = request.options.with_defaults(self.search)
        if request.options.max_length is None and options.max_length is not None:
            options = replace(options, max_length=min(options.max_length, self.limits.longest))
        return options

    def _read(self, sources: Sequence[str], request: Request) -> Lines:
        """Encode the lines of sources.

        Raises:
            InputError: If a line is malformed or has too many symbols.
            Refusal: If the run doesn't support the language.
        """
        try:
            values = self.task.check_options(self.run, {"language": request.language})
            lines = self.task.read(sources, "sources", self.run, False, **values)
        except OptionError as error:  # drop the location of the error, which is a path on this machine
            raise Refusal(400, error.reason) from error
        refuse_long(lines.corpus, self.limits.symbols, lambda row, _: f"sources:{lines.numbers[row] + 1}")
        return lines

    def _search(
        self, options: SearchOptions, tree: bool, rows: Sequence[Any], check: Check, shares: Iterator[float]
    ) -> list[Content]:
        """Return the answer to each row. A row is a pair: the symbols of a source, and its line number.

        `shares` yields the time limit of each exact search.
        """
        count = 1  # exact searches have a time limit per row
        if options.mode in ("beam", "sample"):
            count = max(1, ROWS // (options.num_samples or options.beam_size or 1))
        blocks = [rows[first : first + count] for first in range(0, len(rows), count)]
        return [answer for block in blocks for answer in self._search_rows(options, tree, block, check, shares)]

    def _search_rows(
        self, options: SearchOptions, tree: bool, rows: Sequence[Any], check: Check, shares: Iterator[float]
    ) -> list[Content]:
        """Return the answers to rows of one batch.

        They have the format of `tsallis translate --json`. Each output also has the numbers of its symbols as "tokens".

        Raises:
            OptionError: If the prefix is too long or has symbols that the run can't output.
        """
        model: Any = InterruptibleModel(self.run.model, check)
        run, task, longest = replace(self.run, model=model), self.task, self.limits.longest
        batch = self._batch([symbols for symbols, _ in rows])
        bounded = replace(options, min_length=None, max_length=options.max_length or longest)
        prefixes = spell_prefixes(run, task, bounded, [""] * len(rows), [""] * len(rows))
        form = Form(run.tgt_vocab, options)

        def describe_row(row: int, hypotheses: Sequence[Hypothesis | None], result: Result | None = None) -> Content:
            symbols, line = rows[row]
            outputs = tuple(Output.of(output, run.tgt_vocab) if output else None for output in hypotheses)
            choice = choose(run, task, options, outputs, result)
            answer = Answer(line, outputs, result, choice, task.count_unknown(symbols), _form=form)
            content = answer.to_dict()
            for output, described in zip(hypotheses, content["draws" if result is None else "hypotheses"], strict=True):
                if output is not None:
                    described["tokens"] = output.tokens
            return content

        if options.mode == "sample":
            lines = [line for _, line in rows]
            if not task.searched and prefixes is None:  # texts of language models may be cut off
                if options.returns == "choice":
                    raise Refusal(400, "min_risk can't be used with a language model")
                texts = draw_texts(run, batch, bounded, lines)
                return [
                    {**describe_row(row, ()), "draws": [*map(self._describe_generated, row_texts)]}
                    for row, row_texts in enumerate(texts)
                ]
            return [describe_row(*row) for row in enumerate(draw(run, task, batch, options, lines, prefixes))]
        results = search(run, task, batch, self._within_limits(options, tree, shares), prefixes)
        results = [result.truncated(self.limits.outputs) for result in results]
        if task.ambiguous_text(run.tgt_vocab) is not None and all(result.stopped_by != "time" for result in results):
            results = complete_results(model, batch, results, run.tgt_vocab)
        contents = [describe_row(row, result.hypotheses, result) for row, result in enumerate(results)]
        if tree:
            for row, result in enumerate(results):
                source = batch.src[row, : int(batch.src_lengths[row])]
                tree_content = beam_tree(model, source, result, run.tgt_vocab).to_dict() if result.best else None
                contents[row]["tree"] = tree_content
        return contents

    def _within_limits(self, options: SearchOptions, tree: bool, shares: Iterator[float]) -> SearchOptions:
        """Limit the time of exact searches. Let a beam search list its whole beam if a tree is requested."""
        if options.mode == "beam":
            needs_whole_beam = tree and options.n_best is None and options.returns == "best"
            return replace(options, n_best=options.beam_size) if needs_whole_beam else options
        limit = math.inf if options.time_limit is None else options.time_limit
        return replace(options, time_limit=min(limit, next(shares)))

    def _batch(self, sources: Sequence[Sequence[int]]) -> Batch:
        """Return sources as a batch on the model's device."""
        corpus = TextCorpus([[int(symbol) for symbol in source] for source in sources], [[] for _ in sources])
        return batch_corpus(corpus, self.run.model)

    def _describe_generated(self, text: GeneratedText) -> Content:
        names = ("log_prob", "ended", "support", "prob", "tokens")
        return {"text": self.run.tgt_vocab.decode(text.tokens), **{name: getattr(text, name) for name in names}}

    def prove(self, requests: Sequence[RuleRequest], check: Check) -> list[Content]:
        """Return proofs of a rule about the outputs of sources; blank sources have none."""
        (request,) = requests
        if not self.task.searched:
            raise Refusal(400, "prove can't be used with a language model")
        if not self.run.model.output.normalized:
            raise Refusal(400, "proofs need probabilities that sum to 1; those of alpha-ReLU do not")
        rule, longest = request.rule, self.limits.longest
        defaults = SearchOptions(max_length=min(self.search.max_length or longest, longest))
        lines = self._read(request.sources, request)
        shares = _time_shares(TIME_SHARE * self.limits.seconds, len(lines.numbers))
        proofs: list[Proof] = []
        for row, number in enumerate(lines.numbers):
            served, source = self._with_copies(lines.select([row]))
            run: Any = replace(served.run, model=InterruptibleModel(served.run.model, check))
            limited = replace(rule, options=self._within_limits(rule.options, False, shares))
            proofs += limited.prove(run, self.task, self._batch([[*source.corpus.src[0]]]), [number + 1], defaults)
        return [{"run": self.name, "answers": [proof.to_dict() for proof in proofs]}]

    def suggest(self, requests: Sequence[SuggestRequest], check: Check) -> list[Content]:
        """Return the continuations of a typed text."""
        (request,) = requests
        served, source = self._run_and_source(request)
        run = replace(served.run, model=InterruptibleModel(served.run.model, check))
        completer = Completer(run, self.task, self._num_listed(request))
        return [{"run": self.name, **completer.suggest(source, request.typed).to_dict()}]

    def _num_listed(self, request: SuggestRequest | StepsRequest) -> int:
        """Return the number of continuations or symbols to list."""
        return request.n_best or min(LISTED, self.limits.outputs)

    def _run_and_source(self, request: SuggestRequest | OutputRequest) -> tuple[ServedRun, Batch | None]:
        """Return the run that answers a request, and its source as a batch; None if the source is blank."""
        served, lines = self._with_copies(self._read([request.source], request))
        return served, self._batch([[*lines.corpus.src[0]]]) if lines.numbers else None

    def _output(self, request: OutputRequest, source: Batch, model: Any) -> list[int]:
        """Return the symbols of the output that a request contains; by default, those of the best output.

        Raises:
            Refusal: If a number is not a symbol, or the search found no output.
        """
        if request.tokens is not None:
            for token in request.tokens:
                if not EOS < token < len(self.run.tgt_vocab):
                    last = len(self.run.tgt_vocab) - 1
                    raise Refusal(400, f"tokens must be from {EOS + 1} to {last}, got {describe(token)}")
            return request.tokens
        if request.output is not None:
            tokens = self.task.spell(request.output, self.run) if request.output else []
            if len(tokens) > self.limits.longest:
                raise Refusal(400, f"output must have at most {self.limits.longest} symbols, got {len(tokens)}")
            scored = self._score_text(tokens, request.output, source, model)
            # Show the most probable segmentation of a text.
            return [*scored[1].segmentations[0].tokens] if scored and scored[1].segmentations else tokens
        options = SearchOptions(n_best=1).with_defaults(self.search)
        (result,) = search(replace(self.run, model=model), self.task, source, options)
        if result.best is None:
            raise Refusal(400, "the request has no output, and the search found none: send an output")
        return [*result.best.tokens]

    def _score_text(
        self, tokens: Sequence[int], text: str, source: Batch, model: Any
    ) -> tuple[TokenScores, TextProbability] | None:
        """Return the probability of an output's text, or None if texts have only one spelling."""
        if self.task.ambiguous_text(self.run.tgt_vocab) is None:
            return None
        batch = TextCorpus([source.src[0].tolist()], [tokens]).batch([0]).to(source.src.device)
        (scored,) = score_outputs(model, batch, [text], self.run.tgt_vocab)
        return scored

    @torch.no_grad()
    def steps(self, requests: Sequence[StepsRequest], check: Check) -> list[Content]:
        """Return the possible symbols at each step of an output, up to the first impossible symbol."""
        (request,) = requests
        served, source = self._run_and_source(request)
        model: Any = InterruptibleModel(served.run.model, check)
        if source is None:
            return [{"run": self.name, **self._describe_output([]), "possible": False, "log_prob": None, "steps": []}]
        tokens = served._output(request, source, model)
        steps: list[Content] = []
        with eval_mode(served.run.model):
            state, last = model.start(model.encode(source.src, source.src_lengths)), BOS
            for token in [*tokens, EOS]:
                decoder_input = torch.tensor([last], device=source.src.device)
                log_probs, attention, state = advance(model, state, decoder_input, [0])
                attended = int(count_attended(attention, log_probs))
                steps.append(served._step(token, log_probs[0], attended, self._num_listed(request)))
                if steps[-1]["log_prob"] is None:
                    break
                last = token
        possible = steps[-1]["log_prob"] is not None
        total = sum(step["log_prob"] for step in steps) if possible else None
        described = served._describe_output(tokens)
        content = {"run": self.name, **described, "possible": possible, "log_prob": total, "steps": steps}
        text = request.output if request.output is not None else served.run.tgt_vocab.decode(tokens)
        if scored := served._score_text(tokens, text, source, model):
            described = describe_text(*scored, served.run.tgt_vocab)
            content["text"] = {key: described[key] for key in ("possible", "log_prob", "exact", "missing")}
        return [content]

    def _step(self, token: int, log_probs: torch.Tensor, num_attended: int, n_best: int) -> Content:
        """Describe a symbol of the output and the most probable symbols, given log-probabilities [d_vocab]."""
        log_prob, support = float(log_probs[token]), int((log_probs > -torch.inf).sum())
        best = log_probs.topk(min(n_best, support))
        words = zip(best.indices.tolist(), best.values.exp().tolist(), best.values.tolist(), strict=True)
        return {
            "symbol": self._name(token),
            "prob": math.exp(log_prob),
            "log_prob": finite(log_prob),
            "support": support,
            "num_attended": num_attended,
            "words": [{"symbol": self._name(number), "prob": prob, "log_prob": log} for number, prob, log in words],
        }

    def _name(self, token: int) -> str:
        return self.run.tgt_vocab.name(token)

    def _describe_output(self, tokens: Sequence[int]) -> Content:
        return {"output": self.run.tgt_vocab.decode(tokens), "tokens": tokens, "vocabulary": len(self.run.tgt_vocab)}

    def attention(self, requests: Sequence[AttentionRequest], check: Check) -> list[Content]:
        """Return the non-zero attention weights of heads: for each query, a list of keys and weights."""
        (request,) = requests
        if self._reader is None:
            raise Refusal(400, f"{self.name}: only runs with discrete attention have heads")
        layers = self._reader.layers
        heads = [(layers[-1], head) for head in range(layers[-1].heads)]
        if request.heads is not None:
            heads = choose_heads(layers, ",".join(request.heads))
            if len(heads) > MAX_HEADS:
                raise Refusal(400, f"heads must name at most {MAX_HEADS} heads, got {len(heads)}")
        served, source = self._run_and_source(request)
        if source is None:
            return [{"run": self.name, **self._describe_output([]), "heads": []}]
        tokens = served._output(request, source, InterruptibleModel(served.run.model, check))
        check()
        corpus = TextCorpus([source.src[0].tolist()], [tokens])
        assert served._reader is not None
        (sentence,) = record(served._reader, [corpus.batch([0])])
        parts = [served._head(layers.index(layer), head, sentence) for layer, head in heads[:MAX_HEADS]]
        return [{"run": self.name, **served._describe_output(tokens), "heads": parts}]

    def _head(self, number: int, head: int, sentence: Sentence) -> Content:
        """Describe a head's weights on a sentence."""
        assert self._reader is not None
        layer, weights = self._reader.layers[number], sentence.weights[number].head(head)
        queries, keys = sentence.text.sides(layer.kind)
        if layer.kind == "cross":  # a row belongs to the symbol that the step predicts, not to the symbol that it reads
            queries = (*queries[1:], self._name(EOS))
        cells = list(zip(weights.columns.tolist(), weights.values.tolist(), strict=True))
        rows = [cells[first:last] for first, last in itertools.pairwise(weights.offsets.tolist())]
        name, alpha = head_name(layer, head), layer.alphas[head]
        return {"name": name, "alpha": alpha, "causal": layer.causal, "queries": queries, "keys": keys, "rows": rows}
