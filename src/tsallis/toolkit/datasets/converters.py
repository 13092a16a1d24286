"""Converters of published text formats to the lines of data sets.

A line that a converter does not expect is a ValueError or a UnicodeDecodeError; the caller adds the name of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from tsallis.toolkit.datasets.download import Part
from tsallis.toolkit.datasets.paraphrase_split import split_pairs

POINTER = re.compile(r"(?:\s+in)?(?:\s+the)?\s+image(\d+)\s*\?$")  # end of a question, which names the image
CONTROLS = bytes.maketrans(b"\t\r\n", b"   ")
LABELS = {"neg": "0", "pos": "1"}


def parse(pattern: str, line: str) -> re.Match[str]:
    """Match a whole line, or raise a ValueError that shows it."""
    if match := re.fullmatch(pattern, line):
        return match
    raise ValueError(f"unexpected line {line[:50]!r}")


def segments(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the sentences of a test set in SGML, with sacrebleu's white space, so that references are equal."""
    for line in lines:
        if line.lstrip().startswith(b"<seg"):
            yield " ".join(parse(r"\s*<seg[^>]*>(.*)</seg>\s*", line.decode())[1].split()).encode()


def talks(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the sentences of TED talks, without the lines that describe a talk: its address, title and speaker."""
    for line in lines:
        if not line.lstrip().startswith(b"<"):
            yield b" ".join(line.split())


def clusters(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield one side of one split of tab-separated pairs; further columns are ignored."""
    matches = (parse(r"([^\t]*)\t([^\t]*)(?:\t.*)?", line.decode()) for line in lines)
    for pair in split_pairs((match[1], match[2]) for match in matches)[part.split]:
        yield pair[part.column].encode()


def labelled(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield `label<TAB>text` from a number, a blank and a text in UTF-8 or Latin-1: such collections mix the two."""
    for line in lines:
        content = line.translate(CONTROLS).rstrip()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        yield "\t".join(parse(r"([0-9]+) (.*\S.*)", text).groups()).encode()


def pairs(lines: Iterator[bytes], names: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `image<TAB>question<TAB>answer` from lines with questions, an answer below each, of listed images.

    The image is named at the end of a question: "... in the image7 ?". That end is left out.
    """
    images = {name.strip().decode("latin-1") for name in names if name.strip()}
    for line in lines:
        if not (question := line.decode().strip()):
            continue
        answer = next(lines, b"").decode().strip()
        match = POINTER.search(question)
        if not match or not answer:
            raise ValueError(f"expected a question about an image and its answer, found {question[:50]!r}")
        if (image := f"image{match[1]}") in images:
            yield row(image, question[: match.start()], answer)


def questions(content: bytes) -> Iterator[bytes]:
    """Yield `image<TAB>question<TAB>answer` from a JSON list of [question, answer, number of the image]."""
    for question, answer, image in json.loads(content):
        yield row(str(image), question, answer)


def row(*columns: str) -> bytes:
    """Return columns with tabs between them and none inside."""
    return "\t".join(" ".join(column.split()) for column in columns).encode()


def reviews(name: re.Match[str], content: bytes) -> Iterator[bytes]:
    """Yield `label<TAB>rating<TAB>class/id_rating<TAB>text`, label 0 for `neg` and 1 for `pos`, one line per file."""
    text = content.translate(CONTROLS).strip().decode()
    folder, number, rating = name.groups()
    yield f"{LABELS[folder]}\t{rating}\t{folder}/{number}_{rating}\t{text}".encode()


def patients(name: re.Match[str], content: bytes) -> Iterator[bytes]:
    """Yield `RecordID,minute,parameter,value` from a patient's file with `hh:mm,parameter,value`."""
    lines = iter(content.decode().splitlines())
    parse("Time,Parameter,Value", next(lines, "").strip())
    for line in lines:
        hour, minute, parameter, value = parse(r"(\d+):([0-5]\d),([^,]+),([^,]+)", line.strip()).groups()
        if parameter != "RecordID":
            yield f"{name[1]},{int(hour) * 60 + int(minute)},{parameter},{value}".encode()


# Functions that convert the lines of a published text, and the files of a folder, to lines.
LINE_FORMS = {"segments": segments, "talks": talks, "clusters": clusters, "labelled": labelled}
FOLDER_FORMS = {"reviews": reviews, "patients": patients}
