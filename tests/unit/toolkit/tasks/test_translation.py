"""Preparation of runs from configurations: corpora, vocabularies, tau and development scores."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

import tsallis.toolkit.data.corpus_cache as corpus_cache
from task_runs import config_of, read_split
from tsallis import estimate_tau, estimate_tau_from_scores
from tsallis.errors import InputError
from tsallis.models.registry import MODELS
from tsallis.search import Certificate, Hypothesis, Result
from tsallis.toolkit.config import Config
from tsallis.toolkit.data.corpus import Counts, SampledCorpus
from tsallis.toolkit.data.corpus_cache import cache_folder
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.datasets.embedded import german_english_numbers
from tsallis.toolkit.tasks.prepared import PreparedRun, prepare
from tsallis.toolkit.tasks.translation import Translation, TranslationData, find_sides
from tsallis.toolkit.training.run_folder import build_model, start_run

CORPUS = german_english_numbers()
PAIRS, DEV = CORPUS["train"][:60], CORPUS["dev"][:6]


def write(path: Path, lines: list[str], packing: str = "") -> None:
    blob = "".join(f"{line}\n" for line in lines).encode()
    packed = {"": blob, ".gz": gzip.compress(blob), ".xz": lzma.compress(blob)}[packing]
    path.with_name(path.name + packing).write_bytes(packed)


def corpus(folder: Path, packing: str = "", dev: list[tuple[str, str]] = DEV) -> None:
    for name, pairs in (("train", PAIRS), ("dev", dev)):
        for i, language in enumerate(("de", "en")):
            write(folder / f"{name}.{language}", [pair[i] for pair in pairs], packing)


def config(folder: Path, data: dict[str, Any] | None = None, **sections: Any) -> Config:
    subwords = {"size": 90, **(data or {}).pop("subwords", {})}
    inputs = {"task": "translation", "folder": str(folder), "train": "train", "dev": "dev", "cache": str(folder / "c")}
    small = {"architecture": "transformer", "d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    content = {"version": 1, "data": {**inputs, **(data or {}), "subwords": subwords}, "model": small}
    content["model"] |= sections.pop("model", {})
    return config_of({**content, **sections})


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_parallel_corpora_are_read_plain_or_compressed(tmp_path: Path, packing: str) -> None:
    corpus(tmp_path, packing)
    inputs = config(tmp_path)
    prepared = prepare(inputs)
    data, src, tgt = prepared.data, prepared.data.vocabularies.src, prepared.data.vocabularies.tgt
    assert isinstance(src, Subwords) and src == tgt and len(src) == 90
    assert len(data.train) == len(PAIRS) and len(data.dev.corpus) == len(DEV)
    for i, (source, target) in enumerate(PAIRS):
        assert list(data.train.src[i]) == src.encode(source) and list(data.train.tgt[i]) == tgt.encode(target)
    assert data.dev.references == [target for _, target in DEV]
    assert prepared.task.facts() == {
        **{"task": "translation", "src": "de", "tgt": "en", "max_length": 256},
        **{"lowercase": False, "tokenized": False, "joiner": None},
    }
    assert find_sides(inputs.data, "dev") == tuple(tmp_path / f"dev.{x}{packing}" for x in ("de", "en"))
    assert read_split(inputs.data, "dev") == DEV
    model = build_model(prepared.description)
    assert prepared.description["class"] == "transformer" and model.arguments["src_vocab"] == 90
    batch = data.train.batch([0, 1])
    assert model(batch.src, batch.src_lengths, batch.tgt_in).hidden.shape[-1] == 8


def test_separate_subwords_give_different_vocabularies(tmp_path: Path) -> None:
    corpus(tmp_path)
    symbols = prepare(config(tmp_path, {"subwords": {"joint": False, "size": 70}})).data.vocabularies
    assert symbols.src != symbols.tgt and len(symbols.src) == len(symbols.tgt) == 70
    german = " ".join(source for source, _ in PAIRS)
    # The English texts have no ü.
    assert 3 not in symbols.src.encode(german) and 3 in symbols.tgt.encode(german)
    with pytest.raises(InputError, match=r"share: all needs the same vocabulary .*joint: true"):
        prepare(config(tmp_path, {"subwords": {"joint": False, "size": 70}}, model={"share": "all"}))
    shared = prepare(config(tmp_path, model={"share": "all"}))
    assert build_model(shared.description).arguments["share"] == "all"


def test_different_numbers_of_lines_are_reported_before_subwords(tmp_path: Path) -> None:
    corpus(tmp_path)
    write(tmp_path / "train.en", [target for _, target in PAIRS[1:]])
    with pytest.raises(InputError, match=r"train\.en:60: expected the same number of lines in both files, found 60"):
        prepare(config(tmp_path, {"subwords": {"size": 8000}}))


def test_empty_lines_are_skipped_on_both_sides(tmp_path: Path) -> None:
    """References stay aligned with their sentences."""
    odd = [DEV[0], ("", "x"), DEV[1], ("y", ""), ("\u200b", "nothing that can be read"), DEV[2]]
    corpus(tmp_path, dev=odd)
    data = prepare(config(tmp_path)).data
    assert len(data.dev.corpus) == 3 and data.dev.references == [target for _, target in DEV[:3]]
    for i in range(3):
        assert list(data.dev.corpus.tgt[i]) == data.vocabularies.tgt.encode(DEV[i][1])


def test_subwords_and_encoded_corpora_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path)
    first = prepare(config(tmp_path)).data
    entries = sorted(p.name for p in (tmp_path / "c").iterdir())

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("learned again")

    monkeypatch.setattr(corpus_cache.Subwords, "train", fail)
    again = prepare(config(tmp_path)).data
    assert again.vocabularies.src == first.vocabularies.src and again.train.digest() == first.train.digest()
    assert {p.name for p in (tmp_path / "c").iterdir()} >= set(entries)
    with pytest.raises(AssertionError, match="learned again"):
        prepare(config(tmp_path, {"subwords": {"size": 80}}))


def test_long_pairs_are_skipped_only_in_training(tmp_path: Path) -> None:
    corpus(tmp_path)
    whole, short = prepare(config(tmp_path)).data, prepare(config(tmp_path, {"max_length": 20})).data
    assert 0 < len(short.train) < len(whole.train) and int(short.train.lengths().max()) <= 20
    assert len(short.dev.corpus) == len(whole.dev.corpus)


def test_embedded_translation_data_is_prepared() -> None:
    content = {"task": "translation", "embedded": "german-english-numbers", "subwords": {"size": 200}}
    prepared = prepare(config_of({"version": 1, "data": content, "model": {"d_model": 8}}))
    data, symbols = prepared.data, prepared.data.vocabularies
    assert len(data.train) == len(CORPUS["train"]) and len(data.dev.corpus) == len(CORPUS["dev"])
    assert symbols.src == symbols.tgt and len(symbols.src) == 200
    assert data.dev.references[0] == CORPUS["dev"][0][1] and prepared.description["class"] == "rnn"
    texts = [symbols.tgt.decode(row) for row in data.dev.corpus.tgt]
    assert texts == data.dev.references  # the encoded targets equal the references


def test_embedded_pairs_are_sampled_and_limited_in_length(tmp_path: Path) -> None:
    content = {"task": "translation", "embedded": "german-english-numbers", "subwords": {"size": 200, "sample": 0.3}}
    settings = {"version": 1, "data": {**content, "max_length": 12}, "model": {"d_model": 8}}
    train = prepare(config_of(settings)).data.train
    assert isinstance(train, SampledCorpus) and 0 < len(train) < len(CORPUS["train"])
    assert train.lengths().max() <= 12 and train.alpha == 0.3
    rows = list(range(8))
    assert train.batch(rows, 0).src_tokens != train.batch(rows, 1).src_tokens
    reseeded = prepare(config_of({**settings, "training": {"seed": 2}})).data.train
    assert reseeded.batch(rows, 0).src_tokens != train.batch(rows, 0).src_tokens
    settings["data"] = {**content, "max_length": 1}
    with pytest.raises(InputError, match=r"data\.embedded: all \d+ pairs have more than 1 subwords"):
        prepare(config_of(settings))


def test_missing_files_raise(tmp_path: Path) -> None:
    corpus(tmp_path)
    (tmp_path / "dev.en").unlink()
    with pytest.raises(InputError, match=r"dev\.en: no such file, and none with \.xz or \.gz"):
        prepare(config(tmp_path))
    with pytest.raises(InputError, match=r"data\.test is not set"):
        read_split(config(tmp_path).data, "test")


@pytest.mark.parametrize("tgt", ["ja", "jpn", "ja-JP"])
def test_a_missing_tokenizer_is_reported_before_the_data_is_read(monkeypatch: pytest.MonkeyPatch, tgt: str) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    data = TranslationData(task="translation", train="missing", dev="missing", tgt=tgt)
    for compute in (lambda: Translation.load(data), lambda: Translation(tgt=tgt).measure_outputs(["a"], ["a"])):
        with pytest.raises(InputError, match=rf"data\.tgt: the scores of the language {tgt} need .*sacrebleu\[ja\]"):
            compute()
    with pytest.raises(InputError, match=r"missing\.de .*: no such file"):
        Translation.load(data.model_copy(update={"tokenized": True}))


def test_rows_longer_than_a_batch_are_rejected(tmp_path: Path) -> None:
    corpus(tmp_path)
    with pytest.raises(InputError, match=r"max_tokens must be at least \d+, .* got 5"):
        prepare(config(tmp_path, training={"max_tokens": 5}))


def test_tau_settings_give_the_expected_thresholds(tmp_path: Path) -> None:
    corpus(tmp_path)

    def arguments(**model: Any) -> dict[str, Any]:
        result = prepare(config(tmp_path, model={"output": "alpha_relu", **model})).description["arguments"]
        return dict(result)

    assert arguments(tau=0.25)["tau"] == 0.25
    assert arguments(tau="formula")["tau"] == estimate_tau(8, 90)
    auto = arguments(tau="auto", output_alpha=1.7)
    assert auto == arguments(tau="auto", output_alpha=1.7)
    # Tau is the threshold of the untrained model on the first batch, at positions with a target.
    torch.manual_seed(1)
    model = build_model({"class": "transformer", "arguments": {**auto, "tau": 0.0}}).eval()
    batch = prepare(config(tmp_path)).data.train.batch(range(60))
    with torch.no_grad():
        scores = model.output.scores(model(batch.src, batch.src_lengths, batch.tgt_in).hidden)[batch.tgt_out != -100]
    assert auto["tau"] == pytest.approx(float(estimate_tau_from_scores(scores, 1.7)), rel=1e-6)
    assert arguments(output="entmax", tau="formula", output_alpha=1.7)["tau"] == 0.0


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({"share": "all"}, "share: all"),
        ({"share": "target"}, "share: target"),
        ({"output_alpha": 1.7}, r"output_alpha 1\.7"),
        ({"share": "all", "output_alpha": 1.3}, r"share: all, output_alpha 1\.3"),
        ({"architecture": "rnn"}, "architecture rnn"),
        ({"architecture": "rnn", "share": "target", "output_alpha": 2.0}, "architecture rnn, share: target, .* 2"),
    ],
)
def test_invalid_uses_of_the_tau_formula_are_rejected(model: dict[str, Any], settings: str) -> None:
    content = {"architecture": "transformer", "output": "alpha_relu", "tau": "formula", **model}
    data = {"task": "translation", "folder": "/nowhere", "train": "train", "dev": "dev"}  # no file is read
    with pytest.raises(InputError, match=f"model.tau: formula needs .*, found {settings}; use tau: auto"):
        prepare(config_of({"version": 1, "data": data, "model": content}))


def test_a_started_run_keeps_its_tau(tmp_path: Path) -> None:
    corpus(tmp_path)
    inputs = config(tmp_path, model={"output": "alpha_relu"})
    first = prepare(inputs, tmp_path / "run")
    (tmp_path / "run").mkdir()
    changed = {**first.description, "arguments": {**first.description["arguments"], "tau": 0.123}}
    symbols = first.data.vocabularies.src, first.data.vocabularies.tgt
    assert not start_run(tmp_path / "run", inputs.text(), changed, first.task.facts(), *symbols)
    again = prepare(inputs, tmp_path / "run")
    assert again.description == changed and again.build().output.tau == 0.123
    other = config(tmp_path, model={"output": "alpha_relu", "d_model": 16})
    for prepared in (prepare(inputs), prepare(inputs, tmp_path / "none"), prepare(other, tmp_path / "run")):
        assert prepared.description["arguments"]["tau"] != 0.123


def outputs_sum(prepared: PreparedRun) -> float:
    """Return the mean sum of an untrained model's outputs on development data, which did not determine tau."""
    model, batch = prepared.build().eval(), prepared.data.dev.corpus.batch(range(len(prepared.data.dev.corpus)))
    with torch.no_grad():
        decoded = model(batch.src, batch.src_lengths, batch.tgt_in)
        probs = model.output.probs(model.output.scores(decoded.hidden))
    return float(probs.sum(-1)[batch.tgt_out != -100].mean())


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
@pytest.mark.parametrize(
    "model",
    [
        {"architecture": "rnn"},
        {"architecture": "rnn", "share": "target"},
        {"architecture": "transformer"},
        {"architecture": "transformer", "share": "target", "norm": "pre"},
        {"architecture": "transformer", "share": "all"},
    ],
    ids=lambda model: "-".join(model.values()),
)
def test_untrained_alpha_relu_outputs_sum_to_about_one(tmp_path: Path, model: dict[str, Any], alpha: float) -> None:
    corpus(tmp_path)
    sizes = {"transformer": {"heads": 2, "encoder_layers": 1, "decoder_layers": 1}, "rnn": {"layers": 1}}
    inputs = {"d_model": 64, "output": "alpha_relu", "output_alpha": alpha, "tau": "auto"}
    content = config(tmp_path).model_dump() | {"model": {**sizes[model["architecture"]], **inputs, **model}}
    assert 0.75 < outputs_sum(prepare(config_of(content))) < 1.35


def test_cache_folder_defaults_to_the_system_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("given") == Path("given")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "tsallis"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(None) == tmp_path / "home" / ".cache" / "tsallis"


def test_translation_measure_returns_bleu_chrf_and_exact(tmp_path: Path) -> None:
    corpus(tmp_path)
    prepared = prepare(config(tmp_path))
    nothing = Certificate("none", 0.0)
    right = [Result((Hypothesis(tuple(row), -1.0, (), ()),), nothing) for row in prepared.data.dev.corpus.tgt[:3]]
    result = prepared.measure()([*right, Result((), nothing)])  # results of the first rows only
    assert list(result) == ["bleu", "chrf", "exact"] and result["exact"] == 0.75 and 0 < result["bleu"] < 100


def strings(folder: Path, train: list[str], dev: list[str], **data: Any) -> Config:
    write(folder / "train", train)
    write(folder / "dev", dev)
    inputs = {"folder": str(folder), "train": "train", "dev": "dev", **data}
    return config_of({"version": 1, "data": inputs, "model": {"d_model": 8, "layers": 1}})


def test_examples_too_long_to_train_on_are_left_out(tmp_path: Path) -> None:
    rows = ["ab\tabc\tN", f"{'a' * 300_000}\tb\tN", f"x\t{'b' * 300}\tN", "ba\tb\tV"]
    data = prepare(strings(tmp_path, rows, rows[:1])).data
    assert len(data.train) == 2 and data.train.counts == Counts(4, 2, 0, 2)
    assert "x" not in data.vocabularies.src  # skipped examples add no symbols
    assert len(prepare(strings(tmp_path, rows, rows[:1], max_length=301)).data.train) == 3
    reason = r"all 4 examples have a source or target of more than 2 symbols \(data.max_length\)"
    with pytest.raises(InputError, match=f"^{tmp_path}/train: {reason}"):
        prepare(strings(tmp_path, rows, rows[:1], max_length=2))
    with pytest.raises(InputError, match=rf"^{tmp_path}/dev:2: .* 256 symbols \(data.max_length\), found 300001"):
        prepare(strings(tmp_path, rows, rows[:2]))


def test_sentences_too_long_for_a_search_raise(tmp_path: Path) -> None:
    corpus(tmp_path, dev=[DEV[0], ("", "a"), ("ein " * 9000, "a")])
    with pytest.raises(InputError, match=rf"^{tmp_path}/dev.de:3: expected at most 1024 symbols, found \d+"):
        prepare(config(tmp_path))
    corpus(tmp_path, ".xz", dev=[DEV[0], ("ein", "a " * 9000)])
    for side in ("de", "en"):
        (tmp_path / f"dev.{side}").unlink()
    with pytest.raises(InputError, match=rf"^{tmp_path}/dev.en.xz:2: expected at most 1024 symbols, found \d+"):
        prepare(config(tmp_path))


def test_dev_data_with_only_empty_pairs_raises(tmp_path: Path) -> None:
    corpus(tmp_path, dev=[("", "a"), ("ein", "")])
    with pytest.raises(InputError, match=f"^{tmp_path}/dev.de and {tmp_path}/dev.en: all 2 pairs have an empty"):
        prepare(config(tmp_path))


def test_too_long_forms_raise_with_the_file_of_their_language(tmp_path: Path) -> None:
    loaded = languages_config(tmp_path)
    write(tmp_path / "cc-dev", ["cca\tacc\tN", f"cc{'b' * 300}\tb\tN"])
    with pytest.raises(InputError, match=rf"^{tmp_path}/cc-dev:2: .* 256 symbols \(data.max_length\), found 304"):
        prepare(loaded)


def test_a_model_larger_than_memory_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**_: Any) -> None:
        torch.empty(1 << 60)

    prepared = prepare(strings(tmp_path, ["a\tb\tN"], ["a\tb\tN"]))
    monkeypatch.setitem(MODELS, prepared.description["class"], build)
    with pytest.raises(InputError, match=r"^model: the model .* does not fit into memory"):
        prepared.build()


ONE_LANGUAGE = {"version": 1, "data": {"embedded": "english-verbs"}}
SIZES = {"aa": 8, "bb": 1, "cc": 3}  # samples per language in the development set


def languages_config(folder: Path, **training: Any) -> Config:
    for language, count in SIZES.items():
        write(folder / f"{language}-train", [f"{language}{x}\t{x}{language}\tN" for x in "abcdefgh"])
        write(folder / f"{language}-dev", [f"{language}{x}\t{x}{language}\tN" for x in "abcdefgh"[:count]])
    data = {"folder": str(folder), "train": "{language}-train", "dev": "{language}-dev", "languages": "all"}
    model = {"d_model": 8, "layers": 1}
    return config_of({"version": 1, "data": data, "model": model, "training": training})


@pytest.mark.parametrize("rows", [3, 4, 5, 7, 12])
def test_searched_rows_are_balanced_across_languages(tmp_path: Path, rows: int) -> None:
    data = prepare(languages_config(tmp_path, validation_rows=rows)).data
    assert sorted(data.dev.references) == sorted(f"{x}{name}" for name, n in SIZES.items() for x in "abcdefgh"[:n])
    assert [reference[1:] for reference in data.dev.references] == data.dev.languages
    assert [data.vocabularies.tgt.decode(row) for row in data.dev.corpus.tgt] == data.dev.references
    result = {name: data.dev.languages[:rows].count(name) for name in SIZES}
    most = max(result.values())
    assert all(result[name] in (most, most - 1) or result[name] == SIZES[name] for name in SIZES), result
    again = prepare(languages_config(tmp_path, validation_rows=rows)).data
    assert again.dev.corpus.digest() == data.dev.corpus.digest()


def test_too_few_rows_for_all_languages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="validation_rows: expected at least 3, one per language, found 2"):
        prepare(languages_config(tmp_path, validation_rows=2))


def test_macro_scores_are_selectable_only_with_languages(tmp_path: Path) -> None:
    assert prepare(languages_config(tmp_path, select="macro_levenshtein")).settings.select == "macro_levenshtein"
    with pytest.raises(InputError, match=r"training.select: expected one of accuracy, .*, found 'macro_accuracy'"):
        prepare(config_of({**ONE_LANGUAGE, "training": {"select": "macro_accuracy"}}))


def test_validation_weights_languages_equally(tmp_path: Path) -> None:
    """Being right in the two small languages is better than being right only in the largest one."""
    prepared = prepare(languages_config(tmp_path))
    data, measure = prepared.data, prepared.measure()
    assert data.dev.languages is not None

    def score(*right: str) -> tuple[str, float]:
        rows = zip(data.dev.corpus.tgt, data.dev.languages or (), strict=True)
        outputs = [tuple(row) if language in right else () for row, language in rows]
        result = measure([Result((Hypothesis(output, -1.0, (), ()),), Certificate("none", 0.0)) for output in outputs])
        return next(iter(result.items()))

    assert score("aa") == ("macro_accuracy", pytest.approx(1 / 3))
    assert score("bb", "cc") == ("macro_accuracy", pytest.approx(2 / 3))
    first = measure([Result((), Certificate("none", 0.0))] * 4)  # results of the first rows only
    assert first["macro_accuracy"] == first["accuracy"] == 0
