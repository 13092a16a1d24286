"""Summaries of runs contain the results of the library's functions, from one pass over the corpus."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis_samples import SRC, TGT, corpus, lstm, recording_of, sharp, transformer
from tsallis.analysis import (
    compare_models,
    density,
    density_contrasts,
    diversity,
    head_roles,
    output_statistics,
    read_model,
    record,
    summarize_attention,
    teacher_forced_supports,
)
from tsallis.analysis.density import sentence_density
from tsallis.errors import InputError
from tsallis.search import Certificate, Hypothesis, Result, SearchOptions, beam_search
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.evaluation.empty_output import empty_log_probs
from tsallis.toolkit.evaluation.search_results import search_corpus
from tsallis.toolkit.run_analysis import Options, RunInput, empty_rate, summarize, summarize_runs
from tsallis.toolkit.run_analysis.summary import BATCH, TrainingCounts, count_pieces
from tsallis.toolkit.training import Run


def run_of(folder: Path, model: Any, name: str = "run") -> Run:
    folder = folder / name
    folder.mkdir()
    kind = "transformer" if hasattr(model, "encoder") and hasattr(model, "alphas") else "rnn"
    (folder / "model.json").write_text(json.dumps({"class": kind, "arguments": model.arguments}))
    return Run(folder, model, SRC, TGT, {"task": "translation"}, {})


@pytest.mark.parametrize("make", [transformer, lstm])
def test_summaries_match_the_analysis_functions(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, data = make(), corpus(40)
    summary = summarize(run_of(tmp_path, model), data, "samples", Options(sentences=5, searched=7, beam_size=3))
    recording = recording_of(model, data, BATCH)
    assert [head.density for head in summary.heads] == [head.density for head in density(recording).heads]
    assert summary.diversity == diversity(recording).layers
    roles = head_roles(recording).heads
    assert [(head.role, head.scores) for head in summary.heads] == [(role.role, role.scores) for role in roles]
    for head, role in zip(summary.heads, roles, strict=True):
        assert [example.text for example in head.examples] == [example.text for example in role.examples]
    alone = output_statistics(model, data.batches(BATCH))
    assert summary.outputs.steps == alone.steps and summary.outputs.support_counts == alone.support_counts
    assert summary.outputs.num_attended == pytest.approx(alone.num_attended)
    assert summary.outputs.norm.mean == pytest.approx(alone.norm.mean, abs=1e-6)
    pairs = [(pair.head, pair.sparse.text.index, pair.dense.text.index) for pair in summary.contrasts]
    assert pairs == [(p.head, p.sparse.text.index, p.dense.text.index) for p in density_contrasts(recording)]
    dense = {sentence.text.index: sentence for sentence in recording}
    numbers = {(layer.kind, layer.layer): number for number, layer in enumerate(recording.layers)}
    for pair in summary.contrasts:
        for example in (pair.sparse, pair.dense):
            number = numbers[pair.kind, pair.layer]
            weights = dense[example.text.index].weights[number]
            np.testing.assert_allclose(example.weights.dense()[0], weights.dense()[pair.head], atol=1e-6)
            assert example.score == sentence_density(recording.layers[number], weights)[pair.head]
    steps = dict(teacher_forced_supports(model, data.batches(BATCH), TGT, 12))
    for sentence in summary.sentences:
        for one, other in zip(sentence.steps, steps[sentence.text.index], strict=True):
            assert (one.gold, one.support) == (other.gold, other.support)
            assert one.prob == pytest.approx(other.prob, abs=1e-6)
    first = Corpus(data.src[:7], data.tgt[:7])
    alone = empty_rate(model, first, search_corpus(model, first, SearchOptions(beam_size=3)))
    assert summary.empty.sentences == 7 and summary.empty.rate == alone.rate
    assert [output.index for output in summary.empty.outputs] == [output.index for output in alone.outputs]
    assert json.loads(json.dumps(summary.to_dict()))["empty"]["sentences"] == 7


def test_a_corpus_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and outputs come from one pass. A second pass reads only the sentences that are shown."""
    model, data, calls = transformer(), corpus(3 * BATCH), []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, **k: calls.append(len(a[0])) or forward(*a, **k))
    summary = summarize(run_of(tmp_path, model), data, "samples", Options(sentences=4, beam_size=2))
    assert calls[:3] == [BATCH] * 3
    examples = {e.text.index for head in summary.heads for e in head.examples}
    examples |= {e.text.index for pair in summary.contrasts for e in (pair.sparse, pair.dense)}
    shown = examples | {sentence.text.index for sentence in summary.sentences}
    assert sum(calls[3:]) == len(shown) < 3 * BATCH


def test_comparisons_of_runs_match_compare_models(tmp_path: Path) -> None:
    torch.manual_seed(2)
    models, data = [transformer(), transformer(), lstm()], corpus(37)
    inputs = [RunInput(run_of(tmp_path, model, str(i)), data, "samples") for i, model in enumerate(models)]
    progress: list[tuple[int, str, int, int]] = []
    summaries, comparisons = summarize_runs(inputs, Options(sentences=8, beam_size=2), lambda *x: progress.append(x))
    assert [(one.first, one.second) for one in comparisons] == [("0", "1"), ("0", "2")]
    recordings = [recording_of(model, data, BATCH) for model in models]
    for number, comparison in enumerate(comparisons, 1):
        for contrast in comparison.kinds:
            assert contrast == compare_models(recordings[0], recordings[number], contrast.kind)
    assert [contrast.kind for contrast in comparisons[1].kinds] == ["cross"]
    rows = [[sentence.text.index for sentence in summary.sentences] for summary in summaries]
    assert rows[0] == rows[1] == rows[2] and comparisons[0].kinds[0].differ[0].sentence in rows[0]
    assert {work[0] for work in progress} == {0, 1, 2} and all(done <= total for _, _, done, total in progress)
    assert (0, "attention and outputs", 37, 37) in progress


def test_runs_with_other_vocabularies_are_not_compared(tmp_path: Path) -> None:
    data = corpus(5)
    runs = [run_of(tmp_path, transformer(), name) for name in "ab"]
    runs[1] = Run(runs[1].folder, runs[1].model, Vocabulary([f"{x}" for x in range(8)]), TGT, runs[1].task, {})
    summaries, comparisons = summarize_runs([RunInput(run, data, "samples") for run in runs], Options(beam_size=2))
    assert len(summaries) == 2 and comparisons == []


def test_runs_with_different_corpora_raise(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, transformer(), name) for name in "ab"]
    inputs = [RunInput(runs[0], corpus(5), "samples"), RunInput(runs[1], corpus(6), "samples")]
    with pytest.raises(InputError, match=r"b: expected 5 sentences of samples, as in .*a, found 6"):
        summarize_runs(inputs)


def test_rare_scores_use_training_counts(tmp_path: Path) -> None:
    run, data = run_of(tmp_path, transformer()), corpus(9)
    training = corpus(50, seed=1)
    counts = count_pieces(training, SRC, TGT)
    options = Options(sentences=1, beam_size=1)
    ((summary,), _) = summarize_runs([RunInput(run, data, "samples", TrainingCounts(50, counts))], options)
    by_hand = head_roles(recording_of(run.model, data, BATCH), counts).heads
    assert [head.scores["rare"] for head in summary.heads] == [head.scores["rare"] for head in by_hand]
    assert summary.training_pairs == 50 and summary.heads[0].scores["rare"] is not None
    without = summarize(run, data, "samples", options)
    assert without.training_pairs is None and without.heads[0].scores["rare"] is None


def test_answers_match_the_search_and_have_references(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run, data = run_of(tmp_path, transformer()), corpus(20)
    summary = summarize(run, data, "samples", Options(sentences=2, searched=15, beam_size=4))
    results = search_corpus(run.model, data, SearchOptions(beam_size=4, n_best=4))
    assert {*range(15)} <= {answer.index for answer in summary.answers} <= {*range(20)}
    for answer in summary.answers:
        best = results[answer.index].best
        assert answer.answer == (TGT.decode(best.tokens) if best else None)
        assert answer.prob == (pytest.approx(best.prob) if best else None)
        assert answer.reference == TGT.decode(data.tgt[answer.index])
        assert answer.source == tuple(SRC.name(number) for number in data.src[answer.index])
    shown = {sentence.text.index: sentence for sentence in summary.sentences}
    assert len(shown) == 2 and summary.example in shown and summary.empty.sentences == 15
    counts = {answer.index: len(results[answer.index].hypotheses) for answer in summary.answers}
    assert (counts[summary.example] > 1) == (max(counts.values()) > 1)
    answered = summarize_runs([RunInput(run, data, "samples", target_run="run")], Options(sentences=2, beam_size=1))
    assert answered[0][0].answers == ()  # a run's own answers are not references


def test_softmax_heads_have_density_1(tmp_path: Path) -> None:
    """Weights that float32 rounds to zero still count. Keys that a decoder doesn't see are left out."""
    model = transformer(attention="softmax", output="softmax")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "in_proj_weight" in name:
                parameter *= 300
    summary = summarize(run_of(tmp_path, model), corpus(5), "samples", Options(beam_size=1))
    assert {head.density for head in summary.heads} == {1.0}
    assert summary.outputs.sparsity == 0
    weights = [weights for sentence in summary.sentences for weights in sentence.weights]
    assert min(part.values.min() for part in weights) < 1e-37  # some weights round to zero


@pytest.mark.parametrize("end_rule", ["every", "competing"])
def test_summaries_use_the_end_rule_of_the_options(tmp_path: Path, end_rule: Any) -> None:
    torch.manual_seed(1)
    run, data = run_of(tmp_path, transformer(output="softmax")), corpus(20)
    batch = data.batch([*range(20)])

    def answers(rule: Any) -> list[str]:
        results = beam_search(run.model, batch.src, batch.src_lengths, beam_size=1, end_rule=rule)
        return [TGT.decode(result.best.tokens) for result in results if result.best]

    assert answers("every") != answers("competing")
    summary = summarize(run, data, "samples", Options(sentences=20, beam_size=1, end_rule=end_rule))
    assert sorted(str(sentence.answer) for sentence in summary.sentences) == sorted(answers(end_rule))


def test_summarize_attention_matches_the_summary_of_a_run(tmp_path: Path) -> None:
    model, data = transformer(), corpus(40)
    whole = summarize(run_of(tmp_path, model), data, "samples", Options(sentences=5, beam_size=1))
    batches = list(data.batches(BATCH))
    reader = read_model(model, SRC, TGT)
    alone = summarize_attention(model, reader, batches, name="model", corpus="samples", sentences=5)
    assert (alone.corpus.sentences, alone.diversity) == (40, whole.diversity)
    sizes = [(len(sentence.text.source), len(sentence.text.target)) for sentence in record(reader, batches)]
    assert (alone.corpus.src_symbols, alone.corpus.tgt_symbols) == tuple(map(sum, zip(*sizes, strict=True)))
    for one, other in zip(alone.heads, whole.heads, strict=True):
        assert (one.title, one.scores, one.histogram) == (other.title, other.scores, other.histogram)
        for ours, theirs in zip(one.examples, other.examples, strict=True):
            assert ours.text == theirs.text
            np.testing.assert_allclose(ours.weights.dense(), theirs.weights.dense(), atol=1e-6)
    rows = [sentence.text for sentence in whole.sentences]
    assert [sentence.text for sentence in alone.sentences] == rows
    assert alone.outputs is None and alone.empty is None and alone.sentences[0].tree is None


def test_duplicate_sentences_and_empty_corpora_raise() -> None:
    model, data = transformer(), corpus(4)
    reader = read_model(model, SRC, TGT)
    batches = [data.batch([0, 1]), data.batch([0, 1])]
    with pytest.raises(ValueError, match="numbers from 0 to 3, but number 2 is missing"):
        summarize_attention(model, reader, batches, name="model", corpus="samples")
    with pytest.raises(InputError, match="samples must contain at least one sentence"):
        summarize_attention(model, reader, [], name="model", corpus="samples")


def test_empty_rate_compares_log_probs_exactly() -> None:
    model, data = sharp(lstm), corpus(4)
    empty = empty_log_probs(model, data).tolist()
    assert all(value > -math.inf for value in empty)

    def result(log_prob: float, tokens: tuple[int, ...] = (4,)) -> Result:
        return Result((Hypothesis(tokens, log_prob, (1, 1), (1, 1)),), Certificate("none", 0.0))

    less, more = math.nextafter(empty[0], -math.inf), math.nextafter(empty[1], 0)
    itself = math.nextafter(empty[2], -math.inf)  # the two sums for the same output may round differently
    nothing = Result((), Certificate("none", 0.0))
    empty_wins = empty_rate(model, data, [result(less), result(more), result(itself, ()), nothing])
    assert [output.index for output in empty_wins.outputs] == [0, 3] and empty_wins.rate == 0.5
    assert (empty_wins.outputs[0].empty, empty_wins.outputs[0].best) == (empty[0], less)
    assert empty_rate(model, data, [result(value) for value in empty]).rate == 0  # a tie does not count


def test_empty_rate_rejects_empty_or_unequal_inputs() -> None:
    with pytest.raises(InputError, match="corpus is empty"):
        empty_rate(lstm(), Corpus([], []), [])
    with pytest.raises(ValueError, match="got 0 results for 4 sentences"):
        empty_rate(lstm(), corpus(4), [])


def test_runs_without_words_to_compare_have_no_comparison(tmp_path: Path) -> None:
    one_symbol = Corpus([[5], [6]], [[5, 6], [7]])
    inputs = [RunInput(run_of(tmp_path, lstm(), name), one_symbol, "samples") for name in "ab"]
    summaries, comparisons = summarize_runs(inputs, Options(beam_size=2))
    assert len(summaries) == 2 and comparisons == []
