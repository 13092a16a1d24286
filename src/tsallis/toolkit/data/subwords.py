"""Subwords: encode text as numbers, and decode numbers, with a sentencepiece model."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tsallis.errors import InputError
from tsallis.symbols import BOS, EOS, PAD, SPECIALS, UNK
from tsallis.toolkit.data.io import read_bytes, write_atomic
from tsallis.toolkit.data.subword_sampling import NORMAL, LatticeSampler, MergeSampler, Piece, Sampler

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = {"unigram": 1, "bpe": 2, "word": 3}  # numbers of the kinds of models, as stored in the model file
MAX_LINES = 2_000_000  # maximum number of lines to learn from; sentencepiece keeps them in memory
SPACE = "▁"  # first character of subwords at the beginning of words
THREADS = 4  # number of threads for learning; it is fixed, because it affects rounding


class Subwords:
    """A sentencepiece model whose first four numbers are padding, start, end and unknown.

    Args:
        model: Content of a sentencepiece `.model` file.
        source: Name of the model, for errors.

    Raises:
        InputError: If `model` is not a sentencepiece model, or its first four symbols are different.

    >>> subwords = Subwords.train(["low lower lowest"] * 3, 18)
    >>> subwords.encode("low"), subwords.name(6), subwords.decode(subwords.encode(" lower  slow"))
    ([6], '▁low', 'lower slow')
    """

    def __init__(self, model: bytes, source: str = "subwords") -> None:
        from sentencepiece import SentencePieceProcessor  # imported here, because other vocabularies don't need it

        self.model = bytes(model)
        self.kind = _kind(self.model, source)
        self._processor: Any = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(self.model)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"{source}: not a sentencepiece model") from error
        special = tuple(getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk"))
        if special != (PAD, BOS, EOS, UNK):
            raise InputError(
                f"{source}: padding, start, end and unknown must have the numbers 0, 1, 2, 3, "
                f"found {', '.join(map(str, special))}; train the model with "
                "spm_train --pad_id=0 --bos_id=1 --eos_id=2 --unk_id=3"
            )

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        size: int,
        kind: str = "bpe",
        coverage: float = 1.0,
        byte_fallback: bool = False,
        normalization: str = "nmt_nfkc",
        split_digits: bool = False,
        name: str | None = None,
    ) -> Subwords:
        """Learn a vocabulary from lines of text. The same lines always give an identical model.

        Args:
            lines: Lines of text, which are read once. If there are more than two million lines, a fixed uniform sample
                is used. Lines of more than 4192 bytes are skipped.
            size: Number of subwords, including the four special ones.
            kind: `"bpe"` (Sennrich et al. 2016), `"unigram"` (Kudo 2018) or `"word"`. With "word", subwords are the
                most frequent words, separated by white space.
            coverage: Share of the text's characters that the vocabulary covers, 0.9995 for Chinese and Japanese.
            byte_fallback: Whether to spell unknown characters as bytes. The bytes take 256 numbers of the vocabulary.
            normalization: Rule of sentencepiece: `"nmt_nfkc"`, `"nfkc"` (either folds case with the suffix `"_cf"`), or
                `"identity"`, which normalises only white space.
            split_digits: Whether every digit is a separate subword.
            name: Name of the lines' files, for errors.

        Raises:
            InputError: If there is no text, or the size is too large or too small for it.
        """
        from sentencepiece import SentencePieceTrainer

        errors: list[Exception] = []
        buffer = BytesIO()
        try:
            SentencePieceTrainer.train(
                sentence_iterator=_keep_error(lines, errors),
                model_writer=buffer,
                vocab_size=size,
                model_type=kind,
                character_coverage=coverage,
                byte_fallback=byte_fallback,
                split_digits=split_digits,
                normalization_rule_name=normalization,
                hard_vocab_limit=kind != "word",
                input_sentence_size=MAX_LINES,
                shuffle_input_sentence=True,
                num_threads=THREADS,
                minloglevel=2,
                **dict[str, Any](pad_id=PAD, bos_id=BOS, eos_id=EOS, unk_id=UNK),
            )
        except (RuntimeError, ValueError) as error:
            if errors:
                raise errors[0] from None
            raise InputError(f"{name}: " * (name is not None) + _explain(str(error), size)) from error
        return cls(buffer.getvalue())

    def __len__(self) -> int:
        return int(self._processor.GetPieceSize())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subwords) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __reduce__(self) -> tuple[type[Subwords], tuple[bytes]]:
        return Subwords, (self.model,)

    def encode(self, text: str) -> list[int]:
        """Return the best segmentation, without start and end; unknown characters are encoded as 3."""
        return self._processor.encode(text)

    def normalize(self, text: str) -> str:
        """Return a text as its subwords spell it, for example in lower case and without double spaces."""
        normalized: str = self._processor.Normalize(text)
        return normalized.replace(SPACE, " ").strip()

    def pieces(self, text: str) -> list[str]:
        """Return the pieces into which :meth:`encode` splits a text; unknown pieces keep their spelling."""
        return self._processor.encode(text, out_type=str)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts. One call is several times faster than one call per text."""
        return self._processor.encode(list(texts), num_threads=torch.get_num_threads())

    def encode_arrays(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Encode several texts as arrays, which need less memory than lists."""
        return self._processor.encode(list(texts), num_threads=torch.get_num_threads(), return_type="numpy")

    def split_typed(self, text: str) -> tuple[list[int], str]:
        """Return the subwords of all words except the last, and the spelling of the last word, which may continue.

        >>> subwords = Subwords.train(["low lower lowest"] * 3, 18, normalization="nmt_nfkc_cf")
        >>> subwords.split_typed("low LO"), subwords.split_typed("low ")
        (([6], '▁lo'), ([6], '▁'))
        """
        words = text.split()
        last = words.pop() if words and not text[-1].isspace() else ""
        tokens = self.encode(" ".join(words)) if words else []
        spelling: str = self._processor.Normalize(last)
        return tokens, f"{SPACE}{spelling.removeprefix(SPACE)}" if text else ""

    def sample(self, text: str, alpha: float, seed: int) -> list[int]:
        """Return a random segmentation. For a given text and `alpha`, it depends only on the seed.

        Args:
            text: Text to segment.
            alpha: For BPE, the probability of skipping a merge (BPE-dropout; Provilkov et al. 2020 use 0.1). For
                unigram models, the exponent of a segmentation's probability (Kudo 2018, sec. 3.3, uses 0.1 to 0.5).
            seed: Any integer; its sign has no effect.

        Raises:
            ValueError: If alpha is not from 0 to 1, or the model has the kind "word".
        """
        return self.sample_many([text], alpha, [seed])[0]

    def sample_many(self, texts: Sequence[str], alpha: float, seeds: Sequence[int]) -> list[list[int]]:
        """Return a random segmentation of each text. A segmentation depends only on the text, `alpha` and its seed."""
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be from 0 to 1, got {alpha}")
        if self.kind == "word":
            raise ValueError("a model of the kind 'word' can't sample segmentations: use a bpe or unigram model")
        normalized = self._processor.Normalize(list(texts))
        return [self._sampler.draw(text, alpha, seed) for text, seed in zip(normalized, seeds, strict=True)]

    @cached_property
    def _sampler(self) -> Sampler:
        pieces = [_piece(value) for number, value in message_fields(self.model) if number == 1]
        return MergeSampler(pieces) if self.kind == "bpe" else LatticeSampler(pieces)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of subwords, without padding, start and end; unknown subwords become ⁇."""
        return self._processor.decode([int(i) for i in tokens if i not in (PAD, BOS, EOS)])

    def spellings(self, numbers: Sequence[int]) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Return the UTF-8 bytes of subwords in two cases: at the beginning of a text, and after other subwords.

        A subword that stands for a byte is spelled as this byte in both cases.
        """
        bytes_of = {number: bytes([value]) for value, number in self._sampler.bytes.items()}
        ordinary = [number for number in numbers if number not in bytes_of]
        anchor = next((number for number in ordinary if self.name(number).strip(SPACE)), None)
        prefix = [] if anchor is None else [anchor]
        prefix_length = len(self.decode(prefix))
        first = self._processor.decode([[number] for number in ordinary]) if ordinary else []
        later = self._processor.decode([[*prefix, number] for number in ordinary]) if ordinary else []
        return (
            {**bytes_of, **{number: text.encode() for number, text in zip(ordinary, first, strict=True)}},
            {
                **bytes_of,
                **{number: text[prefix_length:].encode() for number, text in zip(ordinary, later, strict=True)},
            },
        )

    @property
    def drops_leading_spaces(self) -> bool:
        """Whether decoding drops all spaces before the first word of a text, instead of only one."""
        space = int(self._processor.piece_to_id(SPACE))
        return space != UNK and self.decode([space, space]) == ""

    def name(self, number: int) -> str:
        """Return the spelling of a subword, including special ones; `▁` stands for a space."""
        spelling: str = self._processor.id_to_piece(int(number))
        return SPECIALS[number] if number < len(SPECIALS) else spelling

    def fingerprint(self) -> str:
        """Return the SHA-256 of the model file."""
        return hashlib.sha256(self.model).hexdigest()

    def save(self, path: Path | str) -> None:
        """Write the model atomically, in the format of sentencepiece."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.model)

    @classmethod
    def load(cls, path: Path | str) -> Subwords:
        """Read a sentencepiece model; raise an :class:`~tsallis.errors.InputError` for other files."""
        return cls(read_bytes(path), str(path))


def _keep_error(lines: Iterable[str], errors: list[Exception]) -> Iterator[str]:
    """Yield lines. Store errors that occur while reading, because sentencepiece replaces them by its own error."""
    try:
        yield from lines
    except Exception as error:
        errors.append(error)
        raise


def _explain(message: str, size: int) -> str:
    """Translate an error message of sentencepiece into a message with advice."""
    if match := re.search(r"size too high .*<= (\d+)", message):
        return f"{size} subwords are too many for this text: at most {match[1]} can be learned from it"
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{size} subwords are too few for the characters of this text: set at least {match[1]}, or a lower coverage"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return "there is no text to learn subwords from (lines of more than 4192 bytes are ignored)"
    return f"sentencepiece could not learn subwords: {' '.join(message.split())}"


def _kind(model: bytes, label: str) -> str:
    """Return the kind of a model; raise if the file is cut short, which sentencepiece does not notice."""
    try:
        fields = dict(message_fields(model))
        # A model contains its pieces, the training settings and the normaliser, in this order
        # (sentencepiece_model.proto).
        kind = dict(message_fields(fields[2])).get(3, KINDS["unigram"])
        complete = {1, 2, 3} <= fields.keys()
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{label}: not a sentencepiece model, or a truncated one") from error
    names = [name for name, number in KINDS.items() if number == kind]
    if not complete or not names:
        expected = f"a sentencepiece model of the kind {' or '.join(KINDS)}"
        raise InputError(f"{label}: expected {expected}, found another kind or a truncated file")
    return names[0]


def _piece(message: bytes) -> Piece:
    fields = dict(message_fields(message))
    return Piece(fields[1].decode("utf-8"), struct.unpack("<f", fields.get(2, bytes(4)))[0], fields.get(3, NORMAL))


def message_fields(blob: Any) -> Iterator[tuple[int, Any]]:
    """Yield the number and content of each field of a protocol buffer message; a nested message is yielded as bytes."""
    position = 0
    while position < len(blob):
        tag, position = _varint(blob, position)
        value: Any
        if tag & 7 == 0:
            value, position = _varint(blob, position)
        else:
            if tag & 7 not in (1, 2, 5):
                raise ValueError(f"no such wire type: {tag & 7}")
            length, position = _varint(blob, position) if tag & 7 == 2 else (8 if tag & 7 == 1 else 4, position)
            if position + length > len(blob):
                raise ValueError("the message ends inside a field")
            value, position = blob[position : position + length], position + length
        yield tag >> 3, value


def _varint(blob: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = blob[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
