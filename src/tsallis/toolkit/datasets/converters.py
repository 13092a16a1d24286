"""Converters of published text formats to the lines of data sets.

Converters raise a ValueError or a UnicodeDecodeError for an unexpected line. The caller adds the name of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from tsallis.errors import describe
from tsallis.toolkit.datasets.download import Part
from tsallis.toolkit.datasets.paraphrase_split import split_pairs

POINTER = re.compile(r"(?:\s+in)?(?:\s+the)?\s+image(\d+)\s*\?$")  # last words of a question; they name the image
CONTROLS = bytes.maketrans(b"\t\r\n", b"   ")
LABELS = {"neg": "0", "pos": "1"}


def parse(pattern: str, line: str) -> re.Match[str]:
    """Match a whole line, or raise a ValueError that shows the line."""
    if match := re.fullmatch(pattern, line):
        return match
    raise ValueError(f"expected a line that matches {pattern}, found {line[:50]!r}")


def segments(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the sentences of an SGML test set. White space is the same as in the references of sacrebleu."""
    for line in lines:
        if line.lstrip().startswith(b"<seg"):
            yield " ".join(parse(r"\s*<seg[^>]*>(.*)</seg>\s*", line.decode())[1].split()).encode()


def talks(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield the sentences of TED talks. Lines that describe a talk (address, title, speaker) are left out."""
    for line in lines:
        if not line.lstrip().startswith(b"<"):
            yield b" ".join(line.split())


def clusters(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Split tab-separated pairs into train, dev and test, and yield one side of one split. Ignore further columns."""
    matches = (parse(r"([^\t]*)\t([^\t]*)(?:\t.*)?", line.decode()) for line in lines)
    for pair in split_pairs((match[1], match[2]) for match in matches)[part.split]:
        yield pair[part.column].encode()


def labelled(lines: Iterator[bytes], part: Part) -> Iterator[bytes]:
    """Yield `label<TAB>text` from lines with a number, a space and a text. A text may be in UTF-8 or Latin-1."""
    for line in lines:
        content = line.translate(CONTROLS).rstrip()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        yield "\t".join(parse(r"([0-9]+) (.*\S.*)", text).groups()).encode()


def pairs(lines: Iterator[bytes], names: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `image<TAB>question<TAB>answer` from lines that alternate between questions and answers.

    A question names its image at the end: "... in the image7 ?". This end is left out. Only images in `names` are used.
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
    entries = json.loads(content)
    for entry in entries if isinstance(entries, list) else [entries]:
        if not (isinstance(entry, list) and len(entry) == 3 and all(isinstance(text, str) for text in entry[:2])):
            raise ValueError(f"expected [question, answer, image number], found {describe(entry)}")
        yield row(str(entry[2]), *entry[:2])


def row(*columns: str) -> bytes:
    """Join columns with tabs. White space inside a column becomes single spaces."""
    return "\t".join(" ".join(column.split()) for column in columns).encode()


def reviews(name: re.Match[str], content: bytes) -> Iterator[bytes]:
    """Yield the line `label<TAB>rating<TAB>class/id_rating<TAB>text` of a file; label 0 is `neg`, and 1 is `pos`."""
    text = content.translate(CONTROLS).strip().decode()
    folder, number, rating = name.groups()
    yield f"{LABELS[folder]}\t{rating}\t{folder}/{number}_{rating}\t{text}".encode()


def patients(name: re.Match[str], content: bytes) -> Iterator[bytes]:
    """Yield `RecordID,minute,parameter,value` from a patient's file with lines `hh:mm,parameter,value`."""
    lines = iter(content.decode().splitlines())
    parse("Time,Parameter,Value", next(lines, "").strip())
    for line in lines:
        hour, minute, parameter, value = parse(r"(\d+):([0-5]\d),([^,]+),([^,]+)", line.strip()).groups()
        if parameter != "RecordID":
            yield f"{name[1]},{int(hour) * 60 + int(minute)},{parameter},{value}".encode()


# Converters by name: LINE_FORMS for the lines of a published text, FOLDER_FORMS for each file of a folder.
LINE_FORMS = {"segments": segments, "talks": talks, "clusters": clusters, "labelled": labelled}
FOLDER_FORMS = {"reviews": reviews, "patients": patients}
