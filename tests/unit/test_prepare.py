"""What configurations stand for: corpora in every packing, vocabularies, and plain arguments."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest
import torch

import tsallis.data.learned as learned
from tsallis import estimate_tau, estimate_tau_from_scores
from tsallis.config import Config, check_config
from tsallis.data.corpus import Corpus, Counts, SampledCorpus
from tsallis.data.numbers import german_english_numbers
from tsallis.data.subwords import Subwords
from tsallis.errors import InputError
from tsallis.prepare import cache_folder, prepare, read_split, sides
from tsallis.training.run import build_model

PAIRS = german_english_numbers()["train"][:60]
DEV = german_english_numbers()["dev"][:6]


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
    given = {"task": "translation", "folder": str(folder), "train": "train", "dev": "dev", "cache": str(folder / "c")}
    small = {"architecture": "transformer", "d_model": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    content = {"version": 1, "data": {**given, **(data or {}), "subwords": subwords}, "model": small}
    content["model"] |= sections.pop("model", {})
    return check_config({**content, **sections}, "test")


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
def test_a_parallel_corpus_in_every_packing(tmp_path: Path, packing: str) -> None:
    corpus(tmp_path, packing)
    given = config(tmp_path)
    prepared = prepare(given)
    data = prepared.data
    assert isinstance(data.src_vocab, Subwords) and data.src_vocab == data.tgt_vocab and len(data.src_vocab) == 90
    assert len(data.train) == len(PAIRS) and len(data.dev) == len(DEV)
    for i, (source, target) in enumerate(PAIRS):
        assert list(data.train.src[i]) == data.src_vocab.encode(source)
        assert list(data.train.tgt[i]) == data.tgt_vocab.encode(target)
    assert data.references == [target for _, target in DEV]
    assert prepared.task == {"task": "translation", "src": "de", "tgt": "en", "max_length": 256}
    assert sides(given.data, "dev") == tuple(tmp_path / f"dev.{x}{packing}" for x in ("de", "en"))
    assert read_split(given.data, "dev") == DEV
    model = build_model(prepared.description)
    assert prepared.description["class"] == "transformer" and model.arguments["src_vocab"] == 90
    batch = data.train.batch([0, 1])
    assert model(batch.src, batch.src_lengths, batch.tgt_in).hidden.shape[-1] == 8


def test_separate_subwords(tmp_path: Path) -> None:
    corpus(tmp_path)
    data = prepare(config(tmp_path, {"subwords": {"joint": False, "size": 70}})).data
    assert data.src_vocab != data.tgt_vocab and len(data.src_vocab) == len(data.tgt_vocab) == 70
    german = " ".join(source for source, _ in PAIRS)
    assert 3 not in data.src_vocab.encode(german) and 3 in data.tgt_vocab.encode(german)  # no ü in English
    with pytest.raises(InputError, match=r"share: all needs one vocabulary .*joint: true"):
        prepare(config(tmp_path, {"subwords": {"joint": False, "size": 70}}, model={"share": "all"}))
    shared = prepare(config(tmp_path, model={"share": "all"}))
    assert build_model(shared.description).arguments["share"] == "all"


def test_lines_that_are_empty_or_nothing_are_left_out_on_both_sides(tmp_path: Path) -> None:
    """References stay beside the sentences they belong to."""
    odd = [DEV[0], ("", "x"), DEV[1], ("y", ""), ("\u200b", "nothing that can be read"), DEV[2]]
    corpus(tmp_path, dev=odd)
    data = prepare(config(tmp_path)).data
    assert len(data.dev) == 3 and data.references == [target for _, target in DEV[:3]]
    for i in range(3):
        assert list(data.dev.tgt[i]) == data.tgt_vocab.encode(DEV[i][1])


def test_what_was_learned_and_encoded_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus(tmp_path)
    first = prepare(config(tmp_path)).data
    entries = sorted(p.name for p in (tmp_path / "c").iterdir())

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("learned again")

    monkeypatch.setattr(learned.Subwords, "train", fail)
    again = prepare(config(tmp_path)).data
    assert again.src_vocab == first.src_vocab and again.train.digest() == first.train.digest()
    assert {p.name for p in (tmp_path / "c").iterdir()} >= set(entries)
    with pytest.raises(AssertionError, match="learned again"):
        prepare(config(tmp_path, {"subwords": {"size": 80}}))


def test_long_pairs_are_left_out_of_training_alone(tmp_path: Path) -> None:
    corpus(tmp_path)
    whole, short = prepare(config(tmp_path)).data, prepare(config(tmp_path, {"max_length": 20})).data
    assert 0 < len(short.train) < len(whole.train) and int(short.train.lengths().max()) <= 20
    assert len(short.dev) == len(whole.dev)


def test_subwords_drawn_anew_in_every_epoch(tmp_path: Path) -> None:
    corpus(tmp_path)
    data = prepare(config(tmp_path, {"subwords": {"sample": 0.3}})).data
    assert isinstance(data.train, SampledCorpus) and data.train.alpha == 0.3 and isinstance(data.dev, Corpus)
    rows = range(len(PAIRS))
    assert data.train.batch(rows, 0).src_tokens != data.train.batch(rows, 1).src_tokens


def test_embedded_translation() -> None:
    content = {"task": "translation", "embedded": "german-english-numbers", "subwords": {"size": 200}}
    prepared = prepare(check_config({"version": 1, "data": content, "model": {"d_model": 8}}, "test"))
    splits = german_english_numbers()
    assert len(prepared.data.train) == len(splits["train"]) and len(prepared.data.dev) == len(splits["dev"])
    assert prepared.data.src_vocab == prepared.data.tgt_vocab and len(prepared.data.src_vocab) == 200
    assert prepared.data.references[0] == splits["dev"][0][1] and prepared.description["class"] == "rnn"
    texts = [prepared.data.tgt_vocab.text(row) for row in prepared.data.dev.tgt]
    assert texts == prepared.data.references  # what the model is to predict is what it is compared with


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    corpus(tmp_path)
    (tmp_path / "dev.en").unlink()
    with pytest.raises(InputError, match=r"dev\.en: there is no such file \(nor one that ends in \.xz or \.gz\)"):
        prepare(config(tmp_path))
    with pytest.raises(InputError, match=r"names no test file \(data\.test\)"):
        read_split(config(tmp_path).data, "test")


def test_a_row_that_fits_no_batch_is_refused_at_once(tmp_path: Path) -> None:
    corpus(tmp_path)
    with pytest.raises(InputError, match="more than max_tokens: 5"):
        prepare(config(tmp_path, training={"max_tokens": 5}))


def test_tau(tmp_path: Path) -> None:
    corpus(tmp_path)

    def arguments(**model: Any) -> dict[str, Any]:
        found = prepare(config(tmp_path, model={"output": "alpha_relu", **model})).description["arguments"]
        return dict(found)

    assert arguments(tau=0.25)["tau"] == 0.25
    assert arguments(tau="formula")["tau"] == estimate_tau(8, 90)
    with pytest.raises(InputError, match=r"formula is for output_alpha 1\.5 alone, found 1\.7; use auto"):
        arguments(tau="formula", output_alpha=1.7)
    auto = arguments(tau="auto", output_alpha=1.7)
    assert auto == arguments(tau="auto", output_alpha=1.7)
    # The threshold of the first batch through the network as it starts.
    torch.manual_seed(1)
    model = build_model({"class": "transformer", "arguments": {**auto, "tau": 0.0}}).eval()
    batch = prepare(config(tmp_path)).data.train.batch(range(60))
    with torch.no_grad():
        scores = model.output.scores(model(batch.src, batch.src_lengths, batch.tgt_in).hidden)
    assert auto["tau"] == pytest.approx(float(estimate_tau_from_scores(scores, 1.7)), rel=1e-6)
    assert arguments(output="entmax", tau="formula", output_alpha=1.7)["tau"] == 0.0


def test_the_cache_is_where_the_system_has_its_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder("given") == Path("given")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(None) == tmp_path / "tsallis"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder(None) == tmp_path / "home" / ".cache" / "tsallis"


def test_what_outputs_are_worth(tmp_path: Path) -> None:
    from tsallis.search import Certificate, Hypothesis, Result

    corpus(tmp_path)
    prepared = prepare(config(tmp_path))
    nothing = Certificate("none", 0.0)
    right = [Result((Hypothesis(tuple(row), -1.0, (), ()),), nothing) for row in prepared.data.dev.tgt[:3]]
    found = prepared.measure()([*right, Result((), nothing)])  # of the first rows alone
    assert list(found) == ["bleu", "exact"] and found["exact"] == 0.75 and 0 < found["bleu"] < 100


def inflection(folder: Path, train: list[str], dev: list[str], **data: Any) -> Config:
    write(folder / "train", train)
    write(folder / "dev", dev)
    given = {"folder": str(folder), "train": "train", "dev": "dev", **data}
    return check_config({"version": 1, "data": given, "model": {"d_model": 8, "layers": 1}}, "test")


def test_examples_too_long_to_train_on_are_left_out(tmp_path: Path) -> None:
    rows = ["ab\tabc\tN", f"{'a' * 300_000}\tb\tN", f"x\t{'b' * 300}\tN", "ba\tb\tV"]
    data = prepare(inflection(tmp_path, rows, rows[:1])).data
    assert len(data.train) == 2 and data.train.counts == Counts(4, 2, 0, 2)
    assert "x" not in data.src_vocab  # the others count for nothing
    assert len(prepare(inflection(tmp_path, rows, rows[:1], max_length=301)).data.train) == 3
    with pytest.raises(InputError, match=r"none of 4 examples has at most 2 symbols \(data.max_length\)"):
        prepare(inflection(tmp_path, rows, rows[:1], max_length=2))
    with pytest.raises(InputError, match=r"data.dev:2: 300001 symbols, at most 256 are read"):
        prepare(inflection(tmp_path, rows, rows[:2]))


def test_sentences_too_long_for_a_search(tmp_path: Path) -> None:
    corpus(tmp_path, dev=[DEV[0], ("", "a"), ("ein " * 9000, "a")])
    with pytest.raises(InputError, match=r"data.dev:3: \d+ symbols, at most 1024 are read"):
        prepare(config(tmp_path))


def test_a_model_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any) -> None:
        torch.empty(1 << 60)

    prepared = prepare(inflection(tmp_path, ["a\tb\tN"], ["a\tb\tN"]))
    monkeypatch.setattr("tsallis.prepare.build_model", build)
    with pytest.raises(InputError, match=r"the model .* does not fit into memory"):
        prepared.build()
