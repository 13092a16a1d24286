"""Sentencepiece models with other numbers of special symbols segment as before when renumbered."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tsallis.errors import InputError
from tsallis.toolkit.data.subword_numbers import load_subwords
from tsallis.toolkit.data.subwords import Subwords

sentencepiece = pytest.importorskip("sentencepiece")

WORDS = [stem + ending for stem in ("lauf", "sing", "spiel", "wohn", "träum") for ending in ("en", "t", "te", "ung")]
TEXT = [" ".join(WORDS[(i * 7 + k * k) % len(WORDS)] for k in range(1, 3 + i % 5)) + "." for i in range(100)]
NUMBERINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "without start and padding": {"bos_id": -1, "pad_id": -1, "eos_id": 0, "unk_id": 1},
    "end first": {"eos_id": 0, "pad_id": 1, "unk_id": 2, "bos_id": 3},
    "other names": {"pad_id": 3, "pad_piece": "[PAD]", "bos_piece": "[BOS]", "eos_piece": "[EOS]"},
    "symbols of the user": {"user_defined_symbols": ["<de>", "@@"], "byte_fallback": True, "vocab_size": 300},
}


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("numbering", NUMBERINGS)
def test_renumbered_models_match_sentencepiece(tmp_path: Path, kind: str, numbering: str) -> None:
    blob = io.BytesIO()
    settings = {"vocab_size": 40, "minloglevel": 2, "model_type": kind, **NUMBERINGS[numbering]}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=blob, **settings)
    path = tmp_path / "m.model"
    path.write_bytes(blob.getvalue())
    with pytest.raises(InputError, match="padding, start, end and unknown must have the numbers 0, 1, 2, 3"):
        Subwords.load(path)
    before, after = sentencepiece.SentencePieceProcessor(model_proto=blob.getvalue()), load_subwords(path)
    assert [after.name(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    for text in [*TEXT[:9], "spielt @@ <de> singung", "Ω"]:
        ids = after.encode(text)
        assert [after._processor.id_to_piece(i) for i in ids] == before.encode(text, out_type=str) or 3 in ids
        assert after.decode(ids) == before.decode(before.encode(text))
        assert kind == "unigram" or after.sample(text, 0.0, 1) == ids
    ordinary = [i for i in range(before.GetPieceSize()) if not (before.IsControl(i) or before.IsUnknown(i))]
    assert [after.name(i) for i in range(4, len(after))] == [before.id_to_piece(i) for i in ordinary]
    after.save(tmp_path / "n.model")
    assert load_subwords(tmp_path / "n.model") == after == Subwords.load(tmp_path / "n.model")


def test_trained_models_are_not_renumbered(tmp_path: Path) -> None:
    model = Subwords.train(TEXT, 45)
    model.save(tmp_path / "m.model")
    assert load_subwords(tmp_path / "m.model").model == model.model


def test_invalid_model_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    with pytest.raises(InputError, match="can't be read"):
        load_subwords(path)
    for content in (b"", b"text", Subwords.train(TEXT, 45).model[:200]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a sentencepiece model"):
            load_subwords(path)
