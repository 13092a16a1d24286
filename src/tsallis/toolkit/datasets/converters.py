"""Converters of published text formats to the lines of data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from tsallis.errors import shorten
from tsallis.toolkit.datasets.download import Part, SourceFile
from tsallis.toolkit.datasets.paraphrase_split import split_pairs

LABELLED_LINE = re.compile(rb"(\d+) (.*\S.*)")
CLOCK = re.compile(r"(\d+):([0-5]\d)")
POINTER = re.compile(r"(?:\s+in)?(?:\s+the)?\s+image(\d+)\s*\?$")  # end of a question, which names the image
CONTROLS = bytes.maketrans(b"\t\r\n", b"   ")
LABELS = {"neg": "0", "pos": "1"}


class CorruptDownloadError(Exception):
    """An error in the content of a transferred file; `culprit` is the file, where one is known."""

    def __init__(self, message: str, culprit: SourceFile | None = None) -> None:
        super().__init__(message)
        self.culprit = culprit


def decode(line: bytes, where: str) -> str:
    """Decode bytes as UTF-8, or raise."""
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDownloadError(
            f"{where}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}"
        ) from error


def segments(lines: Iterator[bytes], where: str, part: Part) -> Iterator[bytes]:
    """Yield the sentences of a test set in SGML, with sacrebleu's white space, so that references are equal."""
    for line in lines:
        if not line.lstrip().startswith(b"<seg"):
            continue
        match = re.fullmatch(r"\s*<seg[^>]*>(.*)</seg>\s*", decode(line, where))
        if not match:
            raise CorruptDownloadError(
                f"{where}: expected <seg>...</seg> in one line, found {decode(line, where)[:50]!r}"
            )
        yield " ".join(match[1].split()).encode()


def talks(lines: Iterator[bytes], where: str, part: Part) -> Iterator[bytes]:
    """Yield the sentences of TED talks, without the lines that describe a talk: its address, title and speaker."""
    for line in lines:
        if not line.lstrip().startswith(b"<"):
            yield b" ".join(line.split())


def clusters(lines: Iterator[bytes], where: str, part: Part) -> Iterator[bytes]:
    """Yield one side of one split of tab-separated pairs."""
    pairs = []
    for line in lines:
        columns = decode(line, where).split("\t")
        if len(columns) < 2:
            raise CorruptDownloadError(f"{where}: expected two columns, found {columns[0][:50]!r}")
        pairs.append((columns[0], columns[1]))
    for pair in split_pairs(pairs)[part.split]:
        yield pair[part.column].encode()


def labelled(lines: Iterator[bytes], where: str, part: Part) -> Iterator[bytes]:
    """Yield `label<TAB>text` from a number, a blank and a text in UTF-8 or Latin-1: such collections mix the two."""
    for line in lines:
        match = LABELLED_LINE.fullmatch(line.translate(CONTROLS).rstrip())
        if not match:
            raise CorruptDownloadError(f"{where}: expected a number and a text, found {line[:50]!r}")
        try:
            text = match[2].decode("utf-8")
        except UnicodeDecodeError:
            text = match[2].decode("latin-1")
        yield match[1] + b"\t" + text.encode()


def pairs(lines: Iterator[bytes], names: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Yield `image<TAB>question<TAB>answer` from lines with questions, an answer below each, of listed images.

    The image is named at the end of a question: "... in the image7 ?". That end is left out.
    """
    images = {name.strip().decode("latin-1") for name in names if name.strip()}
    for line in lines:
        question = decode(line, where).strip()
        if not question:
            continue
        answer = decode(next(lines, b""), where).strip()
        match = POINTER.search(question)
        if not match or not answer:
            missing = "answer" if match else "image"
            expected = "expected a question about an image and its answer"
            raise CorruptDownloadError(f"{where}: {expected}, found no {missing}: {shorten(question)}")
        if (image := f"image{match[1]}") in images:
            yield row(image, question[: match.start()], answer)


def questions(content: bytes, where: str) -> Iterator[bytes]:
    """Yield `image<TAB>question<TAB>answer` from a JSON list of [question, answer, number of the image]."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptDownloadError(f"{where}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise CorruptDownloadError(f"{where}: expected a list of questions")
    for entry in entries:
        match entry:
            case [str(question), str(answer), int(image)]:
                yield row(str(image), question, answer)
            case _:
                raise CorruptDownloadError(f"{where}: expected [question, answer, image], found {str(entry)[:50]}")


def row(*columns: str) -> bytes:
    """Return columns with tabs between them and none inside."""
    return "\t".join(" ".join(column.split()) for column in columns).encode()


def reviews(name: re.Match[str], content: bytes, where: str) -> Iterator[bytes]:
    """Yield `label<TAB>rating<TAB>class/id_rating<TAB>text`, label 0 for `neg` and 1 for `pos`, one line per file."""
    text = content.translate(CONTROLS).strip()
    decode(text, where)
    folder, number, rating = name.groups()
    yield f"{LABELS[folder]}\t{rating}\t{folder}/{number}_{rating}\t".encode() + text


def patients(name: re.Match[str], content: bytes, where: str) -> Iterator[bytes]:
    """Yield `RecordID,minute,parameter,value` from a patient's file with `hh:mm,parameter,value`."""
    first, *lines = decode(content, where).splitlines() or [""]
    if first.strip() != "Time,Parameter,Value":
        raise CorruptDownloadError(f"{where}: expected Time,Parameter,Value in its first line, found {first[:50]!r}")
    for line in lines:
        columns = line.strip().split(",")
        clock = CLOCK.fullmatch(columns[0])
        if clock is None or len(columns) != 3 or not all(columns):
            raise CorruptDownloadError(f"{where}: expected hh:mm,parameter,value, found {line[:50]!r}")
        if columns[1] == "RecordID":
            if columns[2] != name[1]:
                raise CorruptDownloadError(f"{where}: is about the patient {columns[2][:50]}")
            continue
        yield f"{name[1]},{int(clock[1]) * 60 + int(clock[2])},{columns[1]},{columns[2]}".encode()


# Functions that convert the lines of a published text, and the files of a folder, to lines.
LINE_FORMS = {"segments": segments, "talks": talks, "clusters": clusters, "labelled": labelled}
FOLDER_FORMS = {"reviews": reviews, "patients": patients}
