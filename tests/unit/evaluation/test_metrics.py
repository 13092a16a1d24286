"""Measures against slow and plain counts of the same."""

from __future__ import annotations

import pytest
import torch

from contract.tables import trie
from tsallis.data import Vocabulary
from tsallis.data.corpus import Corpus
from tsallis.evaluation.metrics import (
    WHOLE,
    Evaluation,
    TeacherForcedScores,
    accuracy,
    device_of,
    empty_log_probs,
    evaluate,
    form_scores,
    search_batches,
    search_corpus,
    teacher_forced_scores,
    teacher_forced_sums,
    timed_search,
    translation_scores,
)
from tsallis.models import RNNSeq2Seq, TransformerSeq2Seq
from tsallis.search import Certificate, Ensemble, Hypothesis, Result, beam_search, score
from tsallis.special_symbols import EOS
from tsallis.tasks.inflection import encode_examples, english_verbs

EXAMPLES = english_verbs()["dev"][:12]
SRC = Vocabulary.build(e.src_tokens() for e in EXAMPLES)
TGT = Vocabulary.build(e.tgt_tokens() for e in EXAMPLES)
CORPUS = encode_examples(EXAMPLES, SRC, TGT)
NOTHING = Certificate("none", -torch.inf)


def model(output: str = "entmax", spread: float = 3.0) -> RNNSeq2Seq:
    torch.manual_seed(2)
    result = RNNSeq2Seq(len(SRC), len(TGT), d_model=8, layers=1, dropout=0.5, output=output)
    with torch.no_grad():  # scores far enough apart for sparse supports
        result.output.projection.weight.mul_(10 * spread)
        result.attention.bilinear.weight.mul_(100)
        result.output.projection.bias[EOS] += 0.5
    return result


def transformer() -> TransformerSeq2Seq:
    torch.manual_seed(3)
    return TransformerSeq2Seq(len(SRC), len(TGT), d_model=8, heads=2, layers=2, d_ff=8, dropout=0.5, norm="pre")


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax"])
def test_forced_is_what_single_rows_add_up_to(output: str) -> None:
    net = model(output).eval()
    loss = correct = possible = supported = num_attended = steps = 0.0
    for i in range(len(CORPUS)):
        batch = CORPUS.batch([i])
        with torch.no_grad():
            decoded = net(batch.src, batch.src_lengths, batch.tgt_in)
            scores = net.output.scores(decoded.hidden)[0]
            probs = net.output.probs(scores)
            summed = net.output.loss(decoded.hidden, batch.tgt_out, reduction="sum")
        gold = batch.tgt_out[0]
        loss += float(summed)
        correct += int((probs.argmax(-1) == gold).sum())
        possible += int((probs[range(len(gold)), gold] > 0).sum())
        supported += int((probs > 0).sum())
        num_attended += int((decoded.attention > 0).sum())
        steps += len(gold)
    result = teacher_forced_scores(net, CORPUS, batch_size=5)
    assert result.loss == pytest.approx(loss / steps, rel=1e-5)
    assert result.symbol_accuracy == pytest.approx(correct / steps)
    assert result.gold_in_support == pytest.approx(possible / steps)
    assert result.output_support == pytest.approx(supported / steps)
    assert result.attention_support == pytest.approx(num_attended / steps)


def test_measuring_leaves_the_model_in_training() -> None:
    net = model()
    net.train()
    first = teacher_forced_scores(net, CORPUS)
    assert net.training and teacher_forced_scores(net, CORPUS) == first  # no dropout while measuring
    search_corpus(net, CORPUS, 2)
    assert net.training


def test_results_come_in_the_order_of_the_corpus() -> None:
    net = model().eval()
    results = search_corpus(net, CORPUS, 3, batch_size=5)
    assert len(results) == len(CORPUS)
    for i, result in enumerate(results):
        batch = CORPUS.batch([i])
        (alone,) = beam_search(net, batch.src, batch.src_lengths, beam_size=3)
        assert [h.tokens for h in result.hypotheses] == [h.tokens for h in alone.hypotheses]


def evaluated(net: RNNSeq2Seq | Ensemble) -> Evaluation:
    return evaluate(net, CORPUS, *timed_search(net, CORPUS, beam_size=3))


@pytest.mark.parametrize("output", ["softmax", "sparsemax", "entmax", "alpha_relu"])
def test_evaluation_is_what_its_results_say(output: str) -> None:
    net = model(output).eval()
    result = evaluated(net)
    results = search_corpus(net, CORPUS, 3)
    count = len(CORPUS)
    assert result.samples == count and result.empty == sum(r.best is None for r in results)
    shares = result.complete + result.optimal + result.bounded + result.none
    assert shares == pytest.approx(1)
    assert result.complete == sum(r.certificate.kind == "complete" for r in results) / count
    assert result.as_dict()["loss"] == teacher_forced_scores(net, CORPUS).loss
    if output == "alpha_relu":
        assert result.single == 0  # its values are no probabilities
        assert result.output_sum != pytest.approx(1, abs=1e-3)
    else:
        assert result.single == sum(bool(r.best and r.best.prob >= WHOLE) for r in results) / count
        assert result.output_sum == pytest.approx(1, abs=1e-5)
    steps = [n for r in results if r.best for n in r.best.support]
    looks = [n for r in results if r.best for n in r.best.num_attended]
    assert result.output_support == pytest.approx(sum(steps) / max(len(steps), 1))
    assert result.attention_support == pytest.approx(sum(looks) / max(len(looks), 1))
    assert result.attention_support_teacher_forced == teacher_forced_scores(net, CORPUS).attention_support
    assert result.speed == pytest.approx(len(steps) / result.seconds)
    if output == "softmax":
        assert result.complete == 0 and result.gold_in_support == 1


@pytest.mark.parametrize("output", ["softmax", "entmax"])
def test_the_empty_output(output: str) -> None:
    """Its probability is that of the end at the first step; it counts where no hypothesis is as probable."""
    net = model(output).eval()
    first = []
    for i in range(len(CORPUS)):
        batch = CORPUS.batch([i])
        with torch.no_grad():
            hidden = net(batch.src, batch.src_lengths, batch.tgt_in[:, :1]).hidden
        first.append(net.output.log_probs(net.output.scores(hidden))[0, 0, EOS])
    result = empty_log_probs(net, CORPUS, batch_size=5)
    torch.testing.assert_close(result, torch.stack(first), atol=1e-5, rtol=1e-5)
    results = search_corpus(net, CORPUS, 3)
    better = 0
    for e, r in zip(result.tolist(), results, strict=True):
        better += e > -torch.inf if r.best is None else r.best.tokens != () and e > r.best.log_prob
    assert evaluated(net).empty_rate == better / len(CORPUS)


def test_the_empty_output_is_no_more_probable_than_itself() -> None:
    net = model("softmax").eval()
    worse = [Result((Hypothesis((), e - 1e-7, (1,), (1,)),), NOTHING) for e in empty_log_probs(net, CORPUS).tolist()]
    assert evaluate(net, CORPUS, worse, 1.0).empty_rate == 0
    other = [Result((Hypothesis((5,), e - 1e-7, (1,), (1,)),), NOTHING) for e in empty_log_probs(net, CORPUS).tolist()]
    assert evaluate(net, CORPUS, other, 1.0).empty_rate == 1
    assert evaluate(net, CORPUS, [Result((), NOTHING)] * len(CORPUS), 1.0).empty_rate == 1


def test_a_gold_output_that_was_found_is_possible() -> None:
    net = model("softmax").eval()
    results = search_corpus(net, CORPUS, 3)
    message = Corpus(CORPUS.src, [list(r.hypotheses[-1].tokens) for r in results])  # the search's own finds as the gold
    assert evaluate(net, message, results, 1.0).gold_possible == 1
    assert evaluate(net, CORPUS, results, 1.0).gold_possible == 0
    best = Corpus(CORPUS.src, [list(r.best.tokens) if r.best else [] for r in results])
    assert accuracy(results, best) == 1 and accuracy(results, CORPUS) == 0


def test_parts_add_up_to_the_whole() -> None:
    net = model().eval()
    batches = CORPUS.batches(5)
    parts = [teacher_forced_sums(net, batches[rank::2]) for rank in range(2)]
    whole = TeacherForcedScores.of([a + b for a, b in zip(*parts, strict=True)])
    for name, value in vars(teacher_forced_scores(net, CORPUS, 5)).items():
        assert getattr(whole, name) == pytest.approx(value, rel=1e-12)
    assert teacher_forced_sums(net, []) == [0.0] * 9
    result = [search_batches(net, batches[rank::2], 2) for rank in range(2)]
    assert {**result[0], **result[1]} == dict(enumerate(search_corpus(net, CORPUS, 2, batch_size=5)))


def test_forms_are_compared_as_text() -> None:
    assert form_scores(["drew", "drawed", ""], ["drew", "drew", "a"]) == {"accuracy": 1 / 3, "levenshtein": 4 / 3}
    assert form_scores([], []) == {"accuracy": 0.0, "levenshtein": 0.0}
    with pytest.raises(ValueError, match="shorter"):
        form_scores(["a"], [])


def test_translations_are_scored_by_sacrebleu() -> None:
    texts, references = ["the cat sat on the mat", "a dog"], ["the cat sat on a mat", "the dog"]
    scores = {s.name: s for s in translation_scores(texts, references)}
    from sacrebleu import corpus_bleu, corpus_chrf, corpus_ter

    assert list(scores) == ["bleu", "chrf", "ter"]
    assert scores["bleu"].value == corpus_bleu(texts, [references]).score
    assert scores["chrf"].value == corpus_chrf(texts, [references]).score
    assert scores["ter"].value == corpus_ter(texts, [references]).score
    assert "tok:13a" in scores["bleu"].signature and "version:" in scores["ter"].signature
    (chinese,) = translation_scores(["\u4f60\u597d"], ["\u4f60\u597d"], "zh", ("bleu",))
    assert "tok:zh" in chinese.signature


def test_a_sure_model_has_its_mass_on_one_hypothesis() -> None:
    result = evaluated(model("sparsemax", spread=300.0).eval())
    assert result.single + result.empty / result.samples > 0.9 and result.output_support < 1.1


@pytest.mark.parametrize("nested", [False, True])
def test_an_ensemble_is_evaluated_as_one_model(nested: bool) -> None:
    """Of equal models the numbers are the model's; of others supports unite and losses are averaged."""
    net = model("entmax").eval()
    twice = Ensemble([Ensemble([net, net]), net] if nested else [net, net])
    expected, result = evaluated(net).as_dict(), evaluated(twice).as_dict()
    for name in expected.keys() - {"seconds", "speed"}:
        assert result[name] == pytest.approx(expected[name], abs=1e-6), name


def test_an_ensemble_of_different_models() -> None:
    parts = [model("sparsemax").eval(), model("softmax", 1.0).eval(), transformer().eval()]
    both = Ensemble(parts)
    result, each = (
        teacher_forced_scores(both, CORPUS, batch_size=5),
        [teacher_forced_scores(part, CORPUS) for part in parts],
    )
    for name in ("loss", "attention_support"):
        assert getattr(result, name) == pytest.approx(sum(getattr(f, name) for f in each) / 3, rel=1e-5)
    assert result.gold_in_support == 1 and result.output_sum == pytest.approx(1, abs=1e-5)
    batch = CORPUS.batch(range(len(CORPUS)))
    with torch.no_grad():
        hidden = both(batch.src, batch.src_lengths, batch.tgt_in).hidden
        probs = both.output.probs(both.output.scores(hidden))
        own = [part(batch.src, batch.src_lengths, batch.tgt_in).hidden for part in parts]
        mean = sum(part.output.probs(part.output.scores(h)) for part, h in zip(parts, own, strict=True)) / 3
    torch.testing.assert_close(probs.float(), mean, atol=1e-6, rtol=1e-5)
    counts = batch.tgt_out != -100
    assert result.output_support == pytest.approx((mean > 0).sum(-1)[counts].float().mean().item())
    # What forced decoding gives is what the search's steps give.
    totals = (
        probs.log().gather(-1, batch.tgt_out.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(~counts, 0).sum(-1)
    )
    stepwise = score(both, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    torch.testing.assert_close(totals, stepwise, atol=1e-4, rtol=1e-4)
    assert evaluate(both, CORPUS, *timed_search(both, CORPUS, beam_size=3)).samples == len(CORPUS)


def test_models_are_searched_where_their_parameters_are() -> None:
    assert device_of(model()) == device_of(Ensemble([model()])) == torch.device("cpu")
    elsewhere = model().to("meta")
    assert device_of(elsewhere) == device_of(Ensemble([Ensemble([elsewhere])])) == torch.device("meta")
    assert device_of(trie({(): {EOS: 1.0}})) == torch.device("cpu")
