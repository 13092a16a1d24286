"""Pages on what was measured say what the committed rows say."""

from __future__ import annotations

import csv
import importlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KINDS = ("encoder", "decoder", "cross")
Row = dict[str, str]


def rows_of(name: str) -> list[Row]:
    with (RESULTS / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def of_seeds(name: str, metric: str, tail: str = "") -> list[float]:
    """A metric of the three runs of one setting, from their manifests."""
    paths = (RESULTS / "runs" / f"{name}-s{seed}{tail}.json" for seed in (1, 2, 3))
    return [json.loads(path.read_text(encoding="utf-8"))["metrics"][metric] for path in paths]


def accuracies_of(**setting: str) -> dict[tuple[str, str], list[float]]:
    """The accuracies in percent of the three seeds of each attention and transform to which texts were classified."""
    models: dict[tuple[str, str], list[float]] = {}
    for row in rows_of("documents-cpu.csv"):
        if {name: row[name] for name in setting} == setting:
            models.setdefault((row["attention"], row["transform"]), []).append(100 * float(row["accuracy"]))
    assert {len(seeds) for seeds in models.values()} == {3} and len(models) == 6
    return models


def words(page: str) -> str:
    """The text of a page, each space one blank."""
    return re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text(encoding="utf-8"))


def flat(cell: str) -> list[float]:
    return [number for layer in json.loads(cell) for number in layer]


def percent(share: float) -> str:
    return f"{int(100 * share + 0.5)} %"  # halves up, as the page of a report rounds


def test_the_table_of_alphas_is_that_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = importlib.import_module("alphas").page_table(rows_of("multi30k-alphas-cpu.csv"))
    assert table in (ROOT / "docs" / "learned-alpha.md").read_text(encoding="utf-8")


def test_what_is_said_of_trainings_is_in_their_logs() -> None:
    usual = {"attention": "learned", "updates": "5200", "dropout": "0.1"}
    rows = [row for row in rows_of("multi30k-alphas-history-cpu.csv") if usual.items() <= row.items()]
    runs: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        runs.setdefault((row["alpha_lr_scale"], row["seed"]), {})[row["update"]] = row
    means = {key: [fmean(flat(run[key[0] and "1300"][f"alpha_{k}"])) for k in KINDS] for key, run in runs.items()}
    fast = runs["5", "1"]
    slow = [key for key in runs if key[0] == "1"]
    text = words("learned-alpha.md")
    assert f"fallen to {min(means['5', '1']):.2f} to {max(means['5', '1']):.2f} on average at update 1,300" in text
    assert f"when BLEU on the development set is {float(fast['1300']['dev_bleu']):.0f}" in text
    at_1300 = [mean for key in slow for mean in means[key]]
    ends = [fmean(flat(runs[key]["5200"][f"alpha_{kind}"])) for key in slow for kind in KINDS]
    assert f"they are at {min(at_1300):.2f} to {max(at_1300):.2f} there" in text
    assert f"end between {min(ends):.2f} and {max(ends):.2f}" in text
    correlations = {}
    for key, run in runs.items():
        before, after = ([x for kind in KINDS for x in flat(run[step][f"alpha_{kind}"])] for step in ("0", "5200"))
        correlations[key] = correlation(before, after)
        if key[0] == "0.2":
            moved = fmean(abs(a - b) for a, b in zip(before, after, strict=True))
            assert f"alphas move by {moved:.2f} on average" in text
    lowest, highest = min(correlations[key] for key in slow), max(correlations[key] for key in slow)
    assert f"with the start {correlations['0.2', '1']:.2f}; {lowest:.2f} to {highest:.2f} with one rate for all" in text
    assert f"{correlations['5', '1']:.2f} with five times the rate" in text
    quick = {key: run for key, run in runs.items() if key[0] != "0.2"}
    for run in quick.values():
        pairs = {kind: [flat(run[step][f"alpha_{kind}"]) for step in ("2600", "5200")] for kind in KINDS}
        rises = {kind: sum(b > a for a, b in zip(*pair, strict=True)) for kind, pair in pairs.items()}
        assert rises["encoder"] == 12 and rises["decoder"] < 6 and rises["cross"] < 6
        assert fmean(flat(run["5200"]["density_encoder"])) < fmean(flat(run["2600"]["density_encoder"]))
    late = [run for step, run in fast.items() if int(step) >= 1300]
    assert all(float(row["attention_support"]) > 18.1 for row in late)
    assert (
        max(flat(run["5200"][f"alpha_{kind}"])[i] for run in quick.values() for kind in KINDS for i in range(12)) < 1.5
    )
    scores: dict[str, list[float]] = {"1": [], "5": [], "": []}
    for row in rows_of("multi30k-alphas-cpu.csv"):
        if row["updates"] == "5200":
            scores.setdefault(row["alpha_lr_scale"], []).append(float(row["bleu"]))
        if row["alpha_lr_scale"] == "0.2":
            attended, positions = (f"{float(row[name]):.1f}" for name in ("attended", "positions"))
            assert f"is the sparsest, {attended} of {positions} positions" in text
    one_rate, softmax = (f"{fmean(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in (scores["1"], scores[""]))
    assert f"BLEU is {one_rate} with one rate for all and {softmax} with softmax" in text
    assert len(scores["1"]) == len(scores[""]) == 3


@pytest.fixture(scope="module")
def heads() -> dict[str, dict[tuple[str, int, int], dict[str, Any]]]:
    """The rows of heads by run, kind, layer and head."""
    result: dict[str, dict[tuple[str, int, int], dict[str, Any]]] = {}
    numbers = ("alpha", "density", "dense_sentences", "increase", "layer_divergence")
    for row in rows_of("multi30k-heads-cpu.csv"):
        parsed: dict[str, Any] = {**row, **{name: float(row[name]) for name in numbers}}
        parsed |= {name: json.loads(row[name]) for name in ("scores", "uniform", "contrast")}
        result.setdefault(row["run"], {})[row["kind"], int(row["layer"]), int(row["head"])] = parsed
    return result


def test_what_is_said_of_sparse_heads_is_in_the_rows(heads: Any) -> None:
    text, learned = words("reading-a-report.md"), heads["learned"]
    assert len(learned) == len(heads["softmax"]) == 36
    assert all(head["density"] == 1 for head in heads["softmax"].values())
    sparsest = min(learned, key=lambda key: learned[key]["density"])
    assert sparsest == ("decoder", 2, 2) and f"attends to {percent(learned[sparsest]['density'])} of what" in text
    alphas = {kind: [head["alpha"] for key, head in learned.items() if key[0] == kind] for kind in KINDS}
    every = [alpha for of_kind in alphas.values() for alpha in of_kind]
    assert f"Alphas lie between {min(every):.2f} and {max(every):.2f}" in text
    means = {kind: f"{fmean(of_kind):.2f}" for kind, of_kind in alphas.items()}
    assert (
        f"{means['encoder']} in the encoder, {means['decoder']} in the decoder and {means['cross']} in attention"
        in text
    )
    assert max(learned, key=lambda key: learned[key]["alpha"]) == ("encoder", 2, 3)
    assert f"largest alpha and density {percent(learned['encoder', 2, 3]['density'])}" in text
    assert not any(head["role"] for run in heads.values() for head in run.values())
    assert f"This head's density is {percent(learned['cross', 2, 3]['density'])}" in text
    low, high = learned["decoder", 2, 3]["contrast"]
    assert f"attends to {percent(low)} of its keys on one, to {percent(high)} on the other" in text
    dense = {kind: fmean(h["dense_sentences"] for key, h in learned.items() if key[0] == kind) for kind in KINDS}
    shares = {kind: percent(share) for kind, share in dense.items()}
    assert f"{shares['encoder']} of heads and sentences of the encoder, {shares['decoder']} of the decoder" in text
    assert f"{shares['cross']} of attention to the source have density .95 or more" in text


def test_what_is_said_of_important_heads_is_in_the_rows(heads: Any) -> None:
    text = words("reading-a-report.md")
    best = {name: max(run, key=lambda key: run[key]["increase"]) for name, run in heads.items()}
    assert best == {"learned": ("encoder", 2, 1), "softmax": ("encoder", 1, 2)}
    first, other = (heads[name][best[name]] for name in ("learned", "softmax"))
    assert f"rises by {first['increase']:.3f} a symbol" in text and f"({other['increase']:.3f})" in text
    assert f"{percent(first['scores']['previous'])} of its weight is on the previous token" in text
    assert (
        f"where equal weights have {percent(first['uniform']['previous'])}" in text and first["tendency"] == "previous"
    )
    assert f"alpha is {first['alpha']:.2f}, its density {percent(first['density'])}" in text
    assert f"with {percent(other['scores']['previous'])} on the previous token" in text
    second = heads["softmax"]["encoder", 2, 4]["scores"]["previous"]
    assert f"encoder layer 2 head 4 has {percent(second)}" in text


def test_what_is_said_beside_the_papers_is_in_the_rows(heads: Any) -> None:
    text = words("reading-a-report.md")
    layers = {(kind, layer) for kind, layer, _ in heads["learned"]}
    divergences = {
        key: tuple(heads[run][(*key, 1)]["layer_divergence"] for run in ("learned", "softmax")) for key in layers
    }
    higher = sum(ours > softmax for ours, softmax in divergences.values())
    largest = max(divergences, key=lambda key: divergences[key][0])
    assert largest == ("decoder", 2)
    shown = " beside ".join(f"{value:.3f}".removeprefix("0") for value in divergences[largest])
    assert f"higher in {higher} of {len(layers)} layers, largest in the decoder's second ({shown})" in text
    second = [head["density"] for key, head in heads["learned"].items() if key[:2] == ("decoder", 2)]
    assert f"{percent(min(second))} to {percent(max(second))} in the decoder's second layer" in text
    best = {name: max(h["scores"].get("clusters", 0) for h in run.values()) for name, run in heads.items()}
    assert f"none: {percent(best['learned'])} at most, softmax {percent(best['softmax'])}" in text
    following = max(h["scores"].get("next", 0) for run in heads.values() for h in run.values())
    assert f"none: {percent(following)} at most" in text
    assert not any("question" in h["scores"] for run in heads.values() for h in run.values())
    norms = [
        float(row["logit_norm"])
        for row in rows_of("multi30k-alphas-history-cpu.csv")
        if (row["alpha_lr_scale"], row["seed"], bool(row["logit_norm"])) == ("1", "1", True)
    ]
    assert f"from {norms[0]:.0f} to {norms[-1]:.0f} here" in text
    relu = next(row for row in rows_of("multi30k-cpu.csv") if row["output"] == "alpha-ReLU")
    assert f"have sum {float(relu['output_sum']):.2f} on average" in text
    assert f"{float(relu['supported']):.1f} of 4,997 words are above zero" in text


def cells(page: str) -> list[list[str]]:
    """The cells of all tables of a page, without their heads."""
    lines = [line for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_of_the_pretrained_encoder_are_those_of_the_rows() -> None:
    growth, accuracies = cells("pretrained-encoder.md")[1:9], cells("pretrained-encoder.md")[10:]
    rows = rows_of("minilm-similarity.csv")
    names = [f"{float(row['alpha']):g}" for row in rows[:-1]] + [f"1.5, after {rows[-1]['steps']} steps"]
    numbers = [[f"{float(row[name]):.4f}" for name in ("density", "cosine", "spearman")] for row in rows]
    assert growth == [[name, *row] for name, row in zip(names, numbers, strict=True)]
    assert f"moves by more than {float(rows[0]['largest_change']):.1e}".replace("e-0", "e-") in words(
        "pretrained-encoder.md"
    )
    variants: dict[str, list[Row]] = {}
    for row in rows_of("minilm-questions.csv"):
        variants.setdefault(row["variant"], []).append(row)
    assert accuracies == [
        [name, f"{fmean(float(row['density']) for row in rows):.2f}"]
        + [f"{100 * float(row['accuracy']):.1f}" for row in sorted(rows, key=lambda row: row["seed"])]
        for name, rows in variants.items()
    ]


def test_what_is_said_of_the_pretrained_encoder_is_in_the_rows() -> None:
    text = words("pretrained-encoder.md")
    rows = {(row["variant"], row["seed"]): row for row in rows_of("minilm-questions.csv")}
    assert {(row["steps"], row["batch"]) for row in rows.values()} == {("200", "16")}
    right = {key: round(500 * float(row["accuracy"])) for key, row in rows.items()}
    behind = {name: [right["softmax", seed] - right[name, seed] for seed in "12"] for name, _ in rows}
    density = {name: fmean(float(rows[name, seed]["density"]) for seed in "12") for name, _ in rows}
    assert behind["led to 1.5"] == [0, 0]
    assert f"as many questions right as softmax with {percent(density['led to 1.5'])} of the positions" in text
    some, others = behind["led to 2"]
    assert f"misses it by {some} and {others} questions with {percent(density['led to 2'])}" in text
    some, others = behind["1.5 at once"]
    assert f"is {some} and {others} questions behind" in text
    assert f"({fmean(float(rows['learned from 1.1', seed]['alpha']) for seed in '12'):.2f} on average)" in text
    share = fmean(right.values()) / 500
    error = (share * (1 - share) / 500) ** 0.5
    assert f"is {100 * error:.1f} points, {500 * error:.0f} questions" in text


def test_what_is_said_of_the_heads_of_the_pretrained_encoder_is_in_the_rows() -> None:
    text, rows = words("pretrained-encoder.md"), rows_of("minilm-heads.csv")
    heads = {(row["layer"], row["head"]): row for row in rows}
    starts, none = ([row["layer"] for row in rows if row["role"] == role] for role in ("start", ""))
    between = sum(layer in "2345" for layer in starts)
    assert f"{len(starts)} of the {len(rows)} heads attend to the start of the sentence" in text
    assert f"{between} of them in layers 2 to 5" in text
    assert f"gives `[CLS]` {100 * float(heads['3', '8']['start']):.1f} % of its weight" in text
    assert f"the token before, with {100 * float(heads['1', '3']['previous']):.2f} % of its weight" in text
    assert float(heads["1", "3"]["merging"]) == 1 and heads["1", "3"]["role"] == "previous"
    assert f"the next token with {percent(float(heads['2', '9']['next']))} of its weight" in text
    assert f"gets {percent(float(heads['4', '12']['question']))} of the weight of interrogative words" in text
    ends = sum(layer in "16" for layer in none)
    assert f"{len(none)} heads have no role, {ends} of them in the first and the last layer" in text
    dense = {name: fmean(float(row["density"]) for row in rows if row["layer"] in name) for name in ("1", "6", "2345")}
    first, last, middle = (percent(dense[name]) for name in ("1", "6", "2345"))
    assert f"attend to {first} and {last} of the positions, those between to {middle}" in text


def test_what_is_said_of_long_contexts_is_in_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    study, rows = importlib.import_module("long_context"), rows_of("long-context-cpu.csv")
    page = (ROOT / "docs" / "long-contexts.md").read_text(encoding="utf-8")
    assert study.with_table(page, rows) == page
    assert study.page_table(rows[1:]) not in page
    study.draw(rows, tmp_path / "long-context.svg")
    assert (tmp_path / "long-context.svg").stat().st_size > 1000
    groups = study.groups(rows)

    def at(task: str, variant: str, length: int = 16384) -> float:
        return study.accuracy(groups[task, variant], length)

    kinds = study.IN_PICTURE
    assert all(at("flip-flop", kind, length) > 0.99 for kind in kinds for length in (64, 256, 1024, 4096, 16384))
    counts = [key for key in groups if key[0] == "local-count"]
    assert len(counts) >= 4 and all(at(*key, 64) < 0.9 and at(*key, 64) < at(*key) for key in counts)
    for task in ("recall", "copy", "sort"):
        present = [kind for kind in kinds if (task, kind) in groups]
        best = {kind: at(task, kind) for kind in present if at(task, kind, 64) > 0.9}
        assert min(best, key=lambda kind: best[kind]) == "softmax" and best["softmax"] < 0.05
        assert max(best.values()) < 0.9
    copies = {kind: at("copy", kind) for kind in kinds}
    assert sorted(copies, key=lambda kind: -copies[kind]) == ["ssmax", "learned", "asentmax", "entmax", "softmax"]
    assert at("copy", "ssmax", 4096) > 0.9
    assert max(kinds, key=lambda kind: at("recall", kind)) == "ssmax"
    assert at("sort", "learned") < at("sort", "entmax")
    text = words("long-contexts.md")
    assert f"ASEntmax is at {percent(at('sort', 'asentmax'))} at 16,384 tokens on average" in text
    assert f"1.5-entmax at {percent(at('sort', 'entmax'))}." in text
    ends = [study.accuracies(groups["sort", kind], 16384) for kind in ("asentmax", "entmax")]
    assert sum(share > max(ends[1]) for share in ends[0]) == 1 and len(ends[0]) == 3
    for task in ("recall", "copy", "sort"):
        dense = max(study.accuracies(groups[task, "softmax"], 16384))
        assert dense < min(min(study.accuracies(groups[task, kind], 16384)) for kind in ("entmax", "learned"))
    for kind in ("softmax-rope", "asentmax-rope"):
        assert at("copy", kind, 256) < 0.04 and round(at("flip-flop", kind), 1) == 0.5
    assert [share > 0.9 for share in study.accuracies(groups["recall", "asentmax"], 64)] == [False, False, True]
    heads = {task: groups[task, "asentmax-head"] for task in ("recall", "copy", "sort")}
    assert len(heads["recall"]) == 2 and min(study.accuracies(heads["recall"], 64)) > 0.9
    assert all(abs(at(task, "asentmax-head") - at(task, "entmax")) < 0.04 for task in heads)


def test_what_is_said_of_windows_is_in_the_rows() -> None:
    times = {
        (row["group"], row["operation"], row["shape"]): float(row["query_us"]) for row in rows_of("slopes-cpu.csv")
    }

    def growth(group: str, operation: str, most: int) -> str:
        return f"{times[group, operation, str(most)] / times[group, operation, '1024']:.1f} times as long"

    text = words("long-contexts.md")
    assert f"With slope 1 a query takes {growth('windows', 'entmax-1.5, slope 1', 65536)} with 65,536 keys" in text
    assert f"Without a slope it takes {growth('windows', 'entmax-1.5', 16384)} with 16,384 keys" in text
    behind = growth("decoding", "entmax-1.5, slope 1, norms", 65536)
    assert f"behind 65,536 keys whose norms are known takes {behind} as behind 1,024" in text


def test_what_is_said_of_outputs_and_seeds_is_in_the_rows() -> None:
    def metric(output: str, ending: str, name: str) -> list[float]:
        assert len([*(RESULTS / "runs").glob(f"multi30k-{output}-output-s?-{ending}.json")]) == 3
        return of_seeds(f"multi30k-{output}-output", name, f"-{ending}")

    names = ("softmax", "sparsemax", "entmax", "alpha_relu")
    scores = {name: metric(name, "competing", "bleu") for name in names}
    assert min(scores["entmax"]) > max(scores["softmax"])
    means = {name: fmean(each) for name, each in scores.items()}
    assert sorted(means, key=means.__getitem__) == ["sparsemax", "softmax", "alpha_relu", "entmax"]
    assert round(1 / fmean(metric("softmax", "competing", "empty_rate"))) == 81  # "one caption in eighty"
    assert {rate for name in names for rate in metric(name, "every", "empty_rate")} == {0}
    models = accuracies_of(data="sst2")
    centres = [fmean(seeds) for seeds in models.values()]
    assert 1 < max(centres) - min(centres) < 1.1  # "little more than a point"
    assert 3 < max(max(seeds) - min(seeds) for seeds in models.values()) < 3.5  # "more than three"


def enumerated(numbers: Iterable[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def test_what_is_said_of_alphas_on_inflection_is_in_the_manifests() -> None:
    def accuracies(setting: str) -> list[float]:
        return of_seeds(f"inflection-{setting}", "macro_accuracy")

    softmax, *sparse = map(accuracies, (f"output-{alpha}" for alpha in ("1", "1.25", "1.5", "1.75", "2")))
    text = words("papers-figures.md")
    assert min(map(min, sparse)) > max(softmax) and "worst seed of every sparse output is above the best one" in text
    assert min(map(fmean, sparse)) - fmean(softmax) > 0.09 and "nine points behind or more" in text
    assert 0.11 < max(max(each) - min(each) for each in sparse) < 0.125 and "differ by up to twelve points" in text
    low, high = [[accuracies(f"tau-{tau}") for tau in pair] for pair in (("0.1", "0.3"), ("0.5", "0.7"))]
    behind = [[fmean(sparse[1]) - fmean(seeds) for seeds in each] for each in (low, high)]
    assert max(behind[0]) < 0.03 and "within three points of 1.5-entmax" in text
    assert min(behind[1]) >= 0.07 and "seven or more behind it on average" in text
    assert all(0.069 < sorted(seeds)[1] - min(seeds) < 0.08 for seeds in high)
    assert "one seed of three is seven points below the other two" in text


def test_what_is_said_of_english_to_german_is_in_the_manifests() -> None:
    def metric(output: str, ending: str, name: str = "bleu") -> list[float]:
        return of_seeds(f"multi30k-ende-{output}", name, f"-{ending}")

    softmax, entmax, relu = (metric(output, "competing") for output in ("softmax", "entmax", "alpha_relu"))
    assert max(metric("sparsemax", "competing")) < min(*softmax, *entmax, *relu)  # "below all again"
    assert 0 < sum(entmax) / 3 - sum(softmax) / 3 < 0.5 and min(entmax) > max(softmax)
    assert sum(softmax) < sum(relu) < sum(entmax)
    assert max(relu) > max(entmax) and min(relu) < min(softmax)  # "a better model than either and a worse one"
    kinds = {"softmax": softmax, "entmax": entmax, "alpha_relu": relu}
    losses = {output: sum(scores) / 3 - sum(metric(output, "every")) / 3 for output, scores in kinds.items()}
    assert losses["softmax"] == max(losses.values()) and losses["entmax"] < 0.25
    lengths = [sum(metric("softmax", ending, "length_ratio")) / 3 for ending in ("competing", "every")]
    assert lengths[1] < lengths[0] - 0.05  # "stops earlier"


def test_what_is_said_of_imdb_with_vectors_is_in_the_rows() -> None:
    models = accuracies_of(vectors="scaled.safetensors", cut="400")
    means = {kind: fmean(seeds) for kind, seeds in models.items()}
    behind = {name: means["discrete", name] - means["continuous", name] for name in ("softmax", "sparsemax")}
    assert 2 < behind["softmax"] < 2.5 and 0.8 < behind["sparsemax"] < 1.2
    assert min(means, key=lambda kind: means[kind]) == ("continuous", "softmax")
    assert max(models, key=lambda kind: max(models[kind]) - min(models[kind])) == ("continuous", "softmax")
    assert 0.8 < means["discrete", "softmax"] - means["discrete", "sparsemax"] < 1.2  # "at the cost of a point"
    assert max(means.values()) < means["discrete", "softmax"] + 0.05  # the largest that the table of results names


def test_what_is_said_of_other_sets_of_sentences_is_in_the_rows() -> None:
    trec, mr = accuracies_of(data="trec"), accuracies_of(data="mr")
    for transform in ("softmax", "sparsemax"):
        assert min(trec["combined", "sparsemax"]) > max(trec["continuous", transform])
    for attention in ("discrete", "combined"):
        assert min(mr["continuous", "sparsemax"]) > max(mr[attention, "sparsemax"])
    for data in ("sst5", "subj"):
        means = [*map(fmean, accuracies_of(data=data).values())]
        assert max(means) - min(means) < 1


def test_what_is_said_of_fixed_attention_on_captions_is_in_the_manifests() -> None:
    names = ("multi30k-softmax", "multi30k-attention-entmax")
    softmax, entmax = (of_seeds(name, "bleu") for name in names)
    assert 0 < fmean(softmax) - fmean(entmax) < 0.5 and min(softmax) < max(entmax) < max(softmax)
    dense, sparse = (fmean(of_seeds(name, "attention_support_teacher_forced")) for name in names)
    assert 0.22 < sparse / dense < 0.28


def test_what_is_said_of_94_languages_is_in_the_manifests() -> None:
    def run(name: str) -> dict[str, Any]:
        text = (RESULTS / "runs" / f"inflection-all-{name}.json").read_text(encoding="utf-8")
        return dict(json.loads(text))

    names = {"softmax": ["softmax-long-s1"], "entmax": [f"entmax-long-s{seed}" for seed in (1, 2, 3)]}
    names["sparsemax"] = ["sparsemax-long-s1"]
    longer = {kind: [run(name) for name in each] for kind, each in names.items()}

    def compare(one: dict[str, Any], other: dict[str, Any]) -> tuple[int, int]:
        """Return in how many languages one is ahead of the other, and behind."""
        languages = [each["metrics"]["languages"] for each in (one, other)]
        pairs = [(languages[0][key]["accuracy"], languages[1][key]["accuracy"]) for key in languages[1]]
        assert len(pairs) == 94
        return sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)

    text = words("results.md")
    ahead, behind = zip(*(compare(each, longer["softmax"][0]) for each in longer["entmax"]), strict=True)
    assert f"1.5-entmax in {enumerated(ahead)} of the 94 languages, and behind in {enumerated(behind)};" in text
    sparsemax = compare(longer["sparsemax"][0], longer["softmax"][0])
    assert f"; sparsemax in {sparsemax[0]}, and behind in {sparsemax[1]} (" in text
    ahead, behind = zip(*(compare(each, longer["sparsemax"][0]) for each in longer["entmax"]), strict=True)
    both = f"in {enumerated(ahead)} languages, and behind in {enumerated(behind)}."
    assert f"1.5-entmax is a little ahead, {both}" in text
    published = {"softmax": 0.8255, "entmax": 0.8493, "sparsemax": 0.8496}
    within = {"softmax": 0.015, "entmax": 0.005, "sparsemax": 0.015}
    for kind, each in longer.items():
        for one in each:
            metrics, settings = one["metrics"], one["config"]["training"]
            assert abs(metrics["macro_accuracy"] - published[kind]) < within[kind]
            assert (one["run"]["epoch"], one["training"]["updates"], settings["learning_rate"]) == (23, 32000, 0.002)
            assert kind == "softmax" or (metrics["complete"] > 0.79 and metrics["single"] < 0.66)
            assert metrics["unknown_symbols"] > 0
    short = [run(f"{kind}-s1") for kind in ("softmax", "sparsemax", "entmax")]
    assert sorted(short, key=lambda one: one["metrics"]["macro_accuracy"]) == short
    assert all(one["run"]["epoch"] + 1 == 17 and one["config"]["training"]["learning_rate"] == 0.001 for one in short)
    long = [longer[kind][0]["metrics"]["macro_accuracy"] for kind in ("softmax", "sparsemax", "entmax")]
    assert sorted(long) == long and "lower, in the same order" in text
    ensemble = run("entmax-ensemble")["metrics"]["macro_accuracy"]
    assert 0.8518 < ensemble < 0.8721 and "iitbhu-iiith-02 85.18 %" in text and "uzh-02 87.21 %" in text
    assert abs(ensemble - 0.8655) < 0.005 and "comes within half a point of the paper's" in text
