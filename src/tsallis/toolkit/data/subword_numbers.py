"""Convert sentencepiece models, so that their special symbols have the numbers that this package uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.data.io import read_bytes
from tsallis.toolkit.data.subwords import Subwords, message_fields

# Numbers of fields and types of pieces, as defined in sentencepiece_model.proto.
PIECES, TRAINER, TYPE = 1, 2, 3
UNKNOWN, CONTROL = 2, 3
NUMBERS = {"unk": 40, "bos": 41, "eos": 42, "pad": 43}
SPELLINGS = {"bos": (46, "<s>"), "eos": (47, "</s>"), "pad": (48, "<pad>")}
ORDER = ("pad", "bos", "eos", "unk")


def load_subwords(path: Path | str) -> Subwords:
    """Read a sentencepiece model. Its padding, start, end and unknown symbols may have any numbers.

    If these special symbols are not 0, 1, 2 and 3, they are renumbered, and the other subwords follow in order. Missing
    special symbols are added. The segmentation of text does not change.

    Args:
        path: Path of a `.model` file.

    Returns:
        The model. If no number had to change, the model is the unchanged file.

    Raises:
        InputError: If the file is missing or is not a sentencepiece model.
    """
    model = read_bytes(path)
    try:
        return Subwords(model, str(path))
    except InputError as error:
        if "padding, start, end and unknown must have" not in str(error):
            raise
    try:
        return Subwords(renumber(model), str(path))
    except (IndexError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a sentencepiece model, or a truncated one") from error


def renumber(model: bytes) -> bytes:
    """Return the content of a model with padding, start, end and unknown renumbered to 0, 1, 2 and 3."""
    fields = list(message_fields(model))
    trainer = next(bytes(value) for number, value in fields if number == TRAINER)
    settings = dict(message_fields(trainer))
    spellings = {name: bytes(settings.get(n, text.encode())).decode() for name, (n, text) in SPELLINGS.items()}
    pieces = [bytes(value) for number, value in fields if number == PIECES]
    special: dict[str, bytes] = {}
    ordinary = []
    for piece in pieces:
        content = dict(message_fields(piece))
        spelling = bytes(content[1]).decode()
        name = next((name for name, text in spellings.items() if text == spelling), None)
        if content.get(TYPE) == UNKNOWN:
            special["unk"] = piece
        elif name is not None:
            special[name] = piece + _int_field(TYPE, CONTROL)  # if a field occurs twice, the last value counts
        else:
            ordinary.append(piece)
    for name, text in spellings.items():
        special.setdefault(name, _bytes_field(1, text.encode()) + _int_field(TYPE, CONTROL))
    trainer += b"".join(_int_field(NUMBERS[name], number) for number, name in enumerate(ORDER))
    other_fields = [_bytes_field(number, bytes(value)) for number, value in fields if number not in (PIECES, TRAINER)]
    ordered = [*(special[name] for name in ORDER), *ordinary]
    return b"".join(
        [*(_bytes_field(PIECES, piece) for piece in ordered), _bytes_field(TRAINER, trainer), *other_fields]
    )


def _bytes_field(field: int, content: bytes) -> bytes:
    return bytes([*_varint(field << 3 | 2), *_varint(len(content))]) + content


def _int_field(field: int, value: int) -> bytes:
    return bytes([*_varint(field << 3), *_varint(value)])


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
