"""Subwords: decoding restores the text, models are files, and random segmentations are reproducible."""

from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("sentencepiece")

import sentencepiece

from tsallis.errors import InputError
from tsallis.toolkit.data import subwords
from tsallis.toolkit.data.io import read_bytes
from tsallis.toolkit.data.subword_sampling import LatticeSampler, MergeSampler, Piece
from tsallis.toolkit.data.subwords import Subwords, message_fields

STEMS = ["lauf", "sing", "spiel", "wohn", "lern", "koch", "träum", "frag", "hör", "kauf", "wander", "zeichn"]
ENDINGS = ["en", "st", "t", "e", "te", "ten", "ung", "er", "end"]
WORDS = [stem + ending for stem in STEMS for ending in ENDINGS]
LINES = [" ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(1, 3 + i % 5)) + "." for i in range(200)]
SIZE = 80
MODELS = {kind: Subwords.train(LINES, SIZE, kind) for kind in ("bpe", "unigram")}
BPE = MODELS["bpe"]


@pytest.fixture(params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest) -> Subwords:
    return MODELS[request.param]


def test_decode_restores_encoded_text(model: Subwords) -> None:
    assert len(model) == SIZE
    for line in LINES:
        tokens = model.encode(line)
        assert all(type(i) is int and 4 <= i < SIZE for i in tokens)
        assert model.decode(tokens) == line
        assert "".join(map(model.name, tokens)).replace("▁", " ").strip() == line
    assert model.encode_many(LINES) == [model.encode(line) for line in LINES]
    assert [a.tolist() for a in model.encode_arrays(LINES)] == model.encode_many(LINES)
    assert model.encode_many([]) == [] and model.encode("") == [] and model.decode([]) == ""


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30))
def test_byte_fallback_restores_any_text(text: str) -> None:
    clean = " ".join(text.replace("▁", "").replace("\x00", "").split())
    assert BYTES.decode(BYTES.encode(clean)) == clean


BYTES = Subwords.train(LINES, 320, byte_fallback=True, normalization="identity")


def test_special_symbols_have_numbers_0_to_3() -> None:
    assert [BPE.name(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    tokens = BPE.encode("singen")
    assert BPE.decode([1, *tokens, 2, 0, 0]) == "singen"
    assert 3 in BPE.encode("singen ☃") and BPE.decode(BPE.encode("singen ☃")).split() == ["singen", "⁇"]
    # Text that looks like a special symbol is encoded as text.
    assert not {0, 1, 2} & set(BPE.encode("<pad> <s> </s>"))
    for number in (SIZE, -1):
        with pytest.raises(IndexError, match="out of range"):
            BPE.name(number)
        with pytest.raises(IndexError, match="out of range"):
            BPE.decode([4, number])


def test_training_twice_gives_the_same_file(
    capfd: pytest.CaptureFixture[str], model: Subwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Subwords.train(iter(LINES), SIZE, model.kind)
    assert again.model == model.model and again == model and hash(again) == hash(model)
    assert again.fingerprint() == hashlib.sha256(model.model).hexdigest()
    assert Subwords.train(LINES, SIZE - 1, model.kind) != model and model != "model"
    monkeypatch.setattr(subwords, "MAX_LINES", 150)
    few = [Subwords.train((line + line for line in LINES * 3), 40, model.kind) for _ in range(2)]
    assert few[0] == few[1]
    assert capfd.readouterr() == ("", "")


def test_sizes_that_do_not_fit_the_text_raise(model: Subwords, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"^5000 subwords are too many for this text: at most (\d+) can be") as error:
        Subwords.train(LINES, 5000, model.kind)
    largest = int(str(error.value).split("at most ")[1].split()[0])
    assert len(Subwords.train(LINES, largest, model.kind)) == largest
    with pytest.raises(InputError, match=f"at most {largest} can"):
        Subwords.train(LINES, largest + 1, model.kind)
    with pytest.raises(InputError, match=r"^9 subwords are too few for the characters .* set at least (\d+)"):
        Subwords.train(LINES, 9, model.kind)
    for nothing in ([], ["", "  "], ["x" * 5000]):
        with pytest.raises(InputError, match="there is no text to learn subwords from"):
            Subwords.train(nothing, 60, model.kind)
    assert capfd.readouterr() == ("", "")


def test_invalid_training_arguments_raise() -> None:
    with pytest.raises(InputError, match="expected a sentencepiece model of the kind unigram or bpe or word"):
        Subwords.train(LINES, 60, "char")
    with pytest.raises(InputError, match="4 subwords are too few for the characters of this text"):
        Subwords.train(LINES, 4)
    for arguments in ({"coverage": 1.5}, {"normalization": "nfd"}):
        with pytest.raises(InputError, match="sentencepiece could not learn subwords"):
            Subwords.train(LINES, 60, **arguments)  # type: ignore[arg-type]


def test_errors_of_the_line_iterator_propagate() -> None:
    def lines() -> Iterator[str]:
        yield from LINES
        raise InputError("a.de:201: expected UTF-8 text")

    with pytest.raises(InputError, match=r"^a\.de:201: expected UTF-8 text$"):
        Subwords.train(lines(), 60)


def test_models_round_trip_through_files(tmp_path: Path, model: Subwords) -> None:
    path = tmp_path / "new" / "m.model"
    model.save(path)
    loaded = Subwords.load(path)
    assert loaded == model and loaded.kind == model.kind
    assert loaded.encode_many(LINES) == model.encode_many(LINES)
    plain = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert plain.encode(LINES) == model.encode_many(LINES)
    assert [p.name for p in path.parent.iterdir()] == ["m.model"]
    copy = pickle.loads(pickle.dumps(model))
    assert copy == model and copy.encode(LINES[0]) == model.encode(LINES[0])


def test_damaged_files_raise(tmp_path: Path, model: Subwords) -> None:
    path = tmp_path / "m.model"
    whole = model.model
    # Cuts after which sentencepiece itself would still find a well-formed message.
    ends = set(itertools.accumulate(len(tag) for tag in pieces(whole)))
    assert len(ends) > SIZE
    for cut in sorted(ends | set(range(0, len(whole), 9973)))[:-2]:
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"m\.model: .*a sentencepiece model"):
            Subwords.load(path)
    for blob in (b"", b"no model", b"\x00" * 100, b"\xff" * 100, whole + b"\x0a", b"[" * 1000):
        path.write_bytes(blob)
        with pytest.raises(InputError, match=r"m\.model: .*a sentencepiece model"):
            Subwords.load(path)
    with pytest.raises(InputError, match=r"gone\.model: can't be read: No such file"):
        Subwords.load(tmp_path / "gone.model")


def pieces(blob: bytes) -> Iterator[bytes]:
    at = 0
    for _, value in message_fields(blob):
        start = blob.index(value, at)
        yield blob[at : start + len(value)]
        at = start + len(value)


def test_word_models_split_at_whitespace() -> None:
    lines = ["ein@@ ige Hunde , ſo Ａ", "Hunde bellen ."] * 3
    words = Subwords.train(lines, 100, "word", normalization="identity")
    assert len(words) == 4 + 8  # the text has only 8 words
    tokens = words.encode("Hunde  bellen ſo laut")
    assert [words.name(i) for i in tokens] == ["▁Hunde", "▁bellen", "▁ſo", "<unk>"]
    assert words.decode(words.encode(lines[0])) == lines[0]
    assert len(Subwords.train(lines, 6, "word")) == 6
    with pytest.raises(ValueError, match="use a bpe or unigram model"):
        words.sample("Hunde", 0.1, 1)


def train_elsewhere(prefix: str, **options: Any) -> None:
    """Train a model with sentencepiece itself."""
    options = {"model_prefix": prefix, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), **options)


def test_models_with_other_special_symbols_raise(tmp_path: Path) -> None:
    prefix = str(tmp_path / "other")
    train_elsewhere(prefix, vocab_size=60)
    with pytest.raises(InputError, match=r"other\.model: .* 0, 1, 2, 3, found -1, 1, 2, 0; .*--pad_id=0"):
        Subwords.load(f"{prefix}.model")
    train_elsewhere(prefix, vocab_size=20, model_type="char")
    with pytest.raises(InputError, match="of the kind unigram or bpe or word"):
        Subwords.load(f"{prefix}.model")
    assert read_bytes(f"{prefix}.model")


def test_sampled_segmentations_depend_only_on_the_seed(model: Subwords) -> None:
    line = " ".join(LINES[3:9])
    drawn = [model.sample(line, 0.3, seed) for seed in range(50)]
    assert len(set(map(tuple, drawn))) > 5
    assert all(model.decode(tokens) == line for tokens in drawn)
    # Draws depend on the seed, not on earlier calls.
    assert [model.sample(line, 0.3, seed) for seed in reversed(range(50))] == drawn[::-1]
    assert model.sample_many([line] * 50, 0.3, range(50)) == drawn
    model.sample("etwas anderes", 0.9, 12345)
    assert model.sample(line, 0.3, 7) == drawn[7]
    with pytest.raises(ValueError, match=r"alpha must be from 0 to 1, got 1\.5"):
        model.sample(line, 1.5, 0)


@pytest.mark.process
def test_samples_match_in_another_process(model: Subwords, tmp_path: Path) -> None:
    model.save(tmp_path / "subwords.model")
    code = (
        "import sys; from tsallis.toolkit.data.subwords import Subwords\n"
        "print(Subwords.load(sys.argv[1]).sample_many([sys.argv[2]] * 9, 0.3, range(9)))"
    )
    line = " ".join(LINES[3:9])
    command = [sys.executable, "-c", code, str(tmp_path / "subwords.model"), line]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{model.sample_many([line] * 9, 0.3, range(9))}\n"


@settings(deadline=None)
@given(st.text(st.sampled_from("laufensigt. ▁☃ü<>"), max_size=20) | st.text(max_size=20))
def test_sampling_with_alpha_0_matches_encode(text: str) -> None:
    for known in (BPE, BYTES):
        assert known.sample(text, 0.0, 1) == known.encode(text)
        assert known.decode(known.sample(text, 0.4, 2)) == known.decode(known.encode(text))


def test_larger_alpha_drops_more_merges() -> None:
    characters = BPE.sample("singen lernt", 1.0, 1)
    assert [BPE.name(i) for i in characters] == list("▁singen▁lernt")
    counts = [sum(len(BPE.sample(line, alpha, 5)) for line in LINES) for alpha in (0.0, 0.1, 0.5, 1.0)]
    assert counts == sorted(set(counts))


def test_merges_are_dropped_with_the_given_probability() -> None:
    """Each draw decides once per merge whether to leave it out; the merge abc needs the merge ab."""
    pieces = [Piece(t, 0.0, 2) for t in ("<pad>", "<s>", "</s>", "<unk>")]
    pieces += [Piece(t, -float(i), 1) for i, t in enumerate(["ab", "abc", "a", "b", "c"])]
    sampler = MergeSampler(pieces)
    result = Counter(tuple(sampler.draw("abc", 0.3, seed)) for seed in range(20_000))
    assert result.keys() == {(5,), (4, 8), (6, 7, 8)}
    for tokens, share in (((5,), 0.49), ((4, 8), 0.21), ((6, 7, 8), 0.3)):
        assert abs(result[tokens] / 20_000 - share) < 4 * math.sqrt(share * (1 - share) / 20_000)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_unigram_sampling_matches_exact_probabilities(alpha: float) -> None:
    """The frequencies match the exact probabilities of all segmentations; ☃ is unknown."""
    scores = {"a": -1.0, "b": -2.0, "ab": -1.5, "ba": -2.5, "aba": -4.0, "bb": -3.0}
    pieces = [Piece(t, 0.0, 2) for t in ("<pad>", "<s>", "</s>", "<unk>")]
    pieces += [Piece(text, score, 1) for text, score in scores.items()]
    sampler = LatticeSampler(pieces)
    numbers = {text: 4 + i for i, text in enumerate(scores)}

    def segmentations(text: str) -> Iterator[list[str]]:
        if not text:
            yield []
        for end in range(1, len(text) + 1):
            if text[:end] in scores:
                yield from ([text[:end], *rest] for rest in segmentations(text[end:]))

    text, count = "ababba", 20_000
    weights = {tuple(s): math.exp(alpha * sum(scores[p] for p in s)) for s in segmentations(text)}
    result = Counter(tuple(sampler.draw(text, alpha, seed)) for seed in range(count))
    assert result.keys() <= {tuple(numbers[p] for p in s) for s in weights} and len(weights) > 10
    for parts, weight in weights.items():
        share = weight / sum(weights.values())
        inputs = result[tuple(numbers[p] for p in parts)] / count
        assert abs(inputs - share) < 4.5 * math.sqrt(share * (1 - share) / count)
    assert sampler.draw("a☃☃a", alpha, 1) == [4, 3, 4]


def test_user_defined_symbols_are_never_split(tmp_path: Path) -> None:
    prefix = str(tmp_path / "fixed")
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    for kind in ("bpe", "unigram"):
        train_elsewhere(prefix, vocab_size=SIZE, model_type=kind, user_defined_symbols=["<2en>", "<2"], **ids)
        model = Subwords.load(f"{prefix}.model")
        text = "<2en> singen<2lernt"
        for seed in range(20):
            tokens = model.sample(text, 0.5, seed)
            names = [model.name(i) for i in tokens]
            assert "<2en>" in names and "<2" in names and model.decode(tokens) == model.decode(model.encode(text))
        if kind == "bpe":
            assert model.sample(text, 0.0, 0) == model.encode(text)


def test_samples_match_across_threads(model: Subwords) -> None:
    expected = [model.sample(line, 0.2, i) for i, line in enumerate(LINES)]
    result: dict[int, list[list[int]]] = {}

    def draw(thread: int) -> None:
        result[thread] = [model.sample(line, 0.2, i) for i, line in enumerate(LINES)]

    threads = [threading.Thread(target=draw, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result[n] for n in range(4)] == [expected] * 4


def test_missing_sentencepiece_raises_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match="sentencepiece"):
        Subwords.train(["a"], 10)
