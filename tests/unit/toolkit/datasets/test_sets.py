"""Labelled texts, questions, series and images: conversion of published files, with a local server."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from http_server import Server, packed_in, tar
from tsallis.errors import InputError
from tsallis.toolkit.datasets import registry
from tsallis.toolkit.datasets.archive import LONGEST, fetch_text
from tsallis.toolkit.datasets.download import Part, SourceFile
from tsallis.toolkit.datasets.registry import SOURCES, Source, get
from tsallis.toolkit.tasks.classification import read_labelled

from .conftest import unpacked

QUESTIONS = "image\tquestion\tanswer"


def here(server: Server, file: SourceFile, known: bool = False) -> SourceFile:
    """Return the file with addresses on the local server; `known` keeps its published size and digests."""
    parts = []
    for part in file.parts:
        listed = part.listed and here(server, part.listed)
        count = part.count if known else None
        parts.append(replace(part, archive=here(server, part.archive), listed=listed, count=count))
    urls = tuple(f"{server.address}/{file.name}" for _ in file.urls[:1])
    unknown = {} if known else dict.fromkeys(("size", "sha256", "md5", "lines"))
    return replace(file, urls=urls, parts=tuple(parts), **unknown)


def moved(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, known: bool = False) -> Source:
    files = tuple(here(server, file, known) for file in SOURCES[name].files)
    source = replace(SOURCES[name], files=files)
    monkeypatch.setitem(registry.SOURCES, name, source)
    return source


def folder_of(server: Server, pattern: str, members: dict[str, bytes], **options: object) -> SourceFile:
    part = packed_in(server, "tar-folder", tar(members), pattern, **options)
    return SourceFile(f"text{len(server.files)}", parts=(part,))


def lines_of(file: SourceFile, folder: Path) -> list[str]:
    return fetch_text(file, folder / file.name, folder / "packed").read_text(encoding="utf-8").split("\n")[:-1]


# Reviews: one file per review.

REVIEWS = {
    "aclImdb/README": b"about",
    "aclImdb/test/pos/10_7.txt": "Ol\u00e9\u0085!".encode(),
    "aclImdb/test/neg/2_3.txt": b"no",
    "aclImdb/train/pos/0_9.txt": b"Good.\r\nBetter.<br /><br />Best. ",
    "aclImdb/train/neg/10_1.txt": b"a\tb",
    "aclImdb/train/neg/9_4.txt": b"dull",
    "aclImdb/train/unsup/0_0.txt": b"who knows",
    "aclImdb/train/urls_neg.txt": b"http://",
    "aclImdb/train/neg/x/11_1.txt": b"deeper",
}
TRAIN = "0\t4\tneg/9_4\tdull\n0\t1\tneg/10_1\ta b\n1\t9\tpos/0_9\tGood.  Better.<br /><br />Best.\n"


def test_reviews_are_converted_to_lines(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "imdb")
    server.files["/aclImdb_v1.tar.gz"] = tar(dict(reversed(REVIEWS.items())))  # the order has no effect
    said: list[str] = []
    train, test = get("imdb", tmp_path, report=said.append)
    assert train.read_text(encoding="utf-8") == TRAIN
    assert test.read_bytes() == "0\t3\tneg/2_3\tno\n1\t7\tpos/10_7\tOl\u00e9\u0085!\n".encode()
    assert [tuple(example) for example in read_labelled(train)][:2] == [("0", "dull"), ("0", "a b")]
    assert len(server.requests) == len(said) == 1
    names = {"train.tsv", "train.tsv.sha256", "test.tsv", "test.tsv.sha256"}
    assert {path.name for path in tmp_path.iterdir()} == names
    get("imdb", tmp_path)
    assert len(server.requests) == 1


def test_published_tars_without_files_raise(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "imdb", known=True)
    server.files["/aclImdb_v1.tar.gz"] = tar(REVIEWS)
    with pytest.raises(InputError, match=r"expected 25000 files .*aclImdb/train/.*, found 3; the download was deleted"):
        get("imdb", tmp_path)
    assert not list(tmp_path.glob("train.tsv*")) and not list((tmp_path / ".packed").iterdir())


def test_duplicate_long_or_undecodable_members_raise(server: Server, tmp_path: Path) -> None:
    pattern = r"(?:\./)?f/(neg|pos)/(\d+)_(\d+)\.txt"
    with pytest.raises(InputError, match=r"archive1: .*: \./f/neg/1_2\.txt: occurs twice"):
        lines_of(folder_of(server, pattern, {"f/neg/1_2.txt": b"a", "./f/neg/1_2.txt": b"b"}, form="reviews"), tmp_path)
    with pytest.raises(InputError, match=f"expected at most {LONGEST} bytes, found {LONGEST + 1}"):
        lines_of(folder_of(server, pattern, {"f/pos/1_2.txt": b"a" * (LONGEST + 1)}, form="reviews"), tmp_path)
    with pytest.raises(InputError, match=r"f/pos/1_2\.txt: .*can't decode byte 0xe9"):
        lines_of(folder_of(server, pattern, {"f/pos/1_2.txt": b"ol\xe9"}, form="reviews"), tmp_path)
    part = packed_in(server, "tar-folder", tar({"f/pos/1_2.txt": b"a"}, link="f/neg/3_4.txt"), pattern, form="reviews")
    assert lines_of(SourceFile("linked", parts=(part,)), tmp_path) == ["1\t2\tpos/1_2\ta"]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def changed(content: bytes) -> bytes:
    """Return gzip data with a wrong checksum at its end."""
    return content[:-8] + bytes(4) + content[-4:]


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
@pytest.mark.parametrize("damage", [cut, changed])
def test_damaged_tar_folders_raise(server: Server, tmp_path: Path, mode: str, damage: Callable[[bytes], bytes]) -> None:
    members = {f"f/pos/{n}_1.txt": bytes(range(65, 90)) * n for n in range(1, 200)}
    pattern = r"f/(neg|pos)/(\d+)_(\d+)\.txt"
    part = packed_in(server, "tar-folder", damage(tar(members, mode)), pattern, form="reviews")
    with pytest.raises(InputError, match=r"can't be read: .*was deleted"):
        lines_of(SourceFile("half", parts=(part,)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"] and not list((tmp_path / "packed").iterdir())
    # A tar file that is cut after a member looks complete. Only its number of members shows the damage.
    plain = tar(members, "w:")[: 512 * 20]
    part = packed_in(server, "tar-folder", plain, pattern, form="reviews")
    assert lines_of(SourceFile("plain", parts=(part,)), tmp_path)
    counted = SourceFile("counted", parts=(replace(part, count=len(members)),))
    with pytest.raises(InputError, match=r"expected 199 files .*, found \d+; the download was deleted"):
        lines_of(counted, tmp_path)


# Patients: one file of many lines per patient.

PATIENT = b"Time,Parameter,Value\r\n00:00,RecordID,132540\r\n00:00,Age,76\r\n00:00,Weight,-1\r\n01:11,pH,7.45\r\n"
OTHER = b"Time,Parameter,Value\n00:00,RecordID,9\n00:00,Age,54\n48:00,HR,80"


def test_patients_are_converted_to_one_table(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "physionet2012")
    for letter in "ab":
        members = {f"set-{letter}/132540.txt": PATIENT, f"set-{letter}/9.txt": OTHER, f"set-{letter}/": b""}
        server.files[f"/set-{letter}.tar.gz"] = tar(members)
        server.files[f"/Outcomes-{letter}.txt"] = b"RecordID,In-hospital_death\n9,0\n132540,1\n"
    paths = get("physionet2012", tmp_path)
    assert [path.name for path in paths] == ["set-a.csv", "Outcomes-a.csv", "set-b.csv", "Outcomes-b.csv"]
    expected = "9,0,Age,54\n9,2880,HR,80\n132540,0,Age,76\n132540,0,Weight,-1\n132540,71,pH,7.45\n"
    assert paths[0].read_bytes() == f"RecordID,minute,parameter,value\n{expected}".encode() == paths[2].read_bytes()
    assert paths[1].read_text().count("\n") == 3
    assert not (tmp_path / ".packed").exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "expected a line that matches .*, found ''"),
        (b"Time;Parameter\n", "expected a line that matches .*, found 'Time;Parameter'"),
        (PATIENT + b"1:61,HR,80\n", "expected a line that matches .*, found '1:61,HR,80'"),
        (PATIENT + b"01:00,,80\n", "expected a line that matches .*, found '01:00,,80'"),
        (PATIENT + b"\xff", "can't decode byte 0xff"),
    ],
)
def test_invalid_patient_files_raise(server: Server, tmp_path: Path, content: bytes, match: str) -> None:
    file = folder_of(server, r"(\d+)\.txt", {"132540.txt": content}, form="patients")
    with pytest.raises(InputError, match=rf"132540\.txt: .*{match}"):
        lines_of(file, tmp_path)
    assert not (tmp_path / file.name).exists()


# Labelled sentences.


def test_labelled_sentences_are_converted_to_tsv(server: Server, tmp_path: Path) -> None:
    text = b'0 the action clich\xe9s just pile up . \n1  " caf\xc3\xa9 " \x85\r\n12 a\tb\n'
    part = packed_in(server, "plain", text, form="labelled")
    file = SourceFile("text", parts=(part,))
    # A blank before a text stays. The byte 0x85 makes a line Latin-1, so the UTF-8 line is tested without it.
    assert lines_of(file, tmp_path)[0] == "0\tthe action clich\u00e9s just pile up ."
    assert lines_of(file, tmp_path)[2] == "12\ta b"
    part = packed_in(server, "plain", b'1  " caf\xc3\xa9 " \n', form="labelled")
    assert lines_of(SourceFile("utf8", parts=(part,)), tmp_path) == ['1\t " caf\u00e9 "']


@pytest.mark.parametrize("line", [b"", b"1", b"1 ", b"1   ", b"pos good", b"<html>", b" 1 x"])
def test_sentences_without_a_label_raise(server: Server, tmp_path: Path, line: bytes) -> None:
    part = packed_in(server, "plain", b"1 good\n" + line + b"\n", form="labelled")
    with pytest.raises(InputError, match=r"archive1: .*expected a line that matches .*, found"):
        lines_of(SourceFile("text", parts=(part,)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_every_tenth_sentence_is_held_out(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "subj")
    server.files["/subj.all"] = b"".join(b"%d line %d \n" % (n % 2, n) for n in range(1, 41))
    train, test = get("subj", tmp_path)
    assert [e.text for e in read_labelled(test)] == ["line 10", "line 20", "line 30", "line 40"]
    assert len(read_labelled(train)) == 36
    assert [path for path, _ in server.requests] == ["/subj.all"]


# Questions.


def test_json_questions_are_converted_to_tsv(server: Server, tmp_path: Path) -> None:
    def made(content: str) -> list[str]:
        part = packed_in(server, "tar", tar({"q.json": content.encode()}), "q.json", form="questions")
        file = SourceFile(f"text{len(server.files)}", parts=(part,), header=QUESTIONS)
        return lines_of(file, tmp_path)

    entries = [["what is\tit?", "a  box", 0], ["why?", "no", 12]]
    assert made(json.dumps(entries)) == [QUESTIONS, "0\twhat is it?\ta box", "12\twhy?\tno"]
    # The JSON text is longer than the limit for a line of text.
    assert len(made(json.dumps([["what is this?", "a box", n] for n in range(30_000)]))) == 30_001
    for wrong in ('[["a", "b", 1]', '{"a": 1}', '[["a", "b"]]'):
        with pytest.raises(InputError, match=r"q\.json: can't be read: .*was deleted"):
            made(wrong)


def asked_and_listed(server: Server, text: str, names: str) -> SourceFile:
    listed = packed_in(server, "plain", names.encode()).archive
    part = packed_in(server, "plain", text.encode(), form="pairs", listed=listed)
    return SourceFile(f"text{len(server.files)}", parts=(part,), header=QUESTIONS)


def test_questions_with_answers_on_the_next_line_are_converted(server: Server, tmp_path: Path) -> None:
    text = (
        "what is on the desk in the image3 ?\nbook, scissor\n"
        "what is left of image10 in the image10 ?\nchair\n\n"
        "how many in this image3 ?\n2\n"
        "what is at the top of the image31 ?\nlamp\n"
        "what is on the side of image3 ?\nbed"
    )
    file = asked_and_listed(server, text, "image3\nimage10\n")
    assert lines_of(file, tmp_path) == [
        QUESTIONS,
        "image3\twhat is on the desk\tbook, scissor",
        "image10\twhat is left of image10\tchair",
        "image3\thow many in this\t2",
        "image3\twhat is on the side of\tbed",
    ]
    assert sorted(path for path, _ in server.requests) == ["/archive1", "/archive2"]
    for wrong in ("what is it ?\nbed\n", "what in the image3 ?\n"):
        with pytest.raises(InputError, match="expected a question about an image and its answer, found 'what"):
            lines_of(asked_and_listed(server, wrong, "image3\n"), tmp_path)


def test_downloaded_image_lists_are_deleted_on_errors(server: Server, tmp_path: Path) -> None:
    file = asked_and_listed(server, "what in the image3 ?\nbed\n", "<html>\n")
    with pytest.raises(InputError, match=r"expected 2 lines, found 1"):
        lines_of(replace(file, lines=2), tmp_path)
    assert not list((tmp_path / "packed").iterdir())


# Images.


def png(pixels: np.ndarray) -> bytes:
    images, file = pytest.importorskip("PIL.Image"), io.BytesIO()
    images.fromarray(pixels).save(file, "png")
    return file.getvalue()


def drawings(server: Server, members: dict[str, bytes], **options: object) -> SourceFile:
    file = folder_of(server, r"i/(\d+)\.png", members, **options)
    return replace(file, name=f"images{len(server.files)}.npy", holds="images")


def test_images_need_pillow_before_a_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "easy-vqa")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match="easy-vqa: JPEG and PNG files need Pillow"):
        get("easy-vqa", tmp_path)
    assert not server.requests


def test_too_little_memory_keeps_the_download(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    file = drawings(server, {"i/0.png": png(np.zeros((4, 6, 3), np.uint8))})
    monkeypatch.setattr(np, "stack", fail)
    with pytest.raises(InputError, match=r"images\d+\.npy: its content does not fit into memory"):
        fetch_text(file, tmp_path / file.name, tmp_path / "packed")
    assert (tmp_path / "packed" / file.parts[0].archive.name).exists()


def test_drawings_are_converted_to_an_array(server: Server, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (12, 4, 6, 3), dtype=np.uint8)
    members = {f"i/{n}.png": png(pixels[n]) for n in sorted(range(12), key=str)} | {"i/x.txt": b""}
    file = drawings(server, members, count=12)
    path = fetch_text(file, tmp_path / file.name, tmp_path / "packed")
    assert (np.load(path) == pixels).all() and np.load(path).dtype == np.uint8
    for wrong, match in (
        ({"i/1.png": png(pixels[0])}, "expected images numbered from 0 to 0"),
        ({}, "at least one array"),
        ({"i/0.png": png(pixels[0]), "i/1.png": png(pixels[0, :2])}, "all input arrays must have the same shape"),
        ({"i/0.png": b"<html>"}, r"archive\d+: can't be read: i/0\.png can't be read as an image"),
    ):
        file = drawings(server, wrong)
        with pytest.raises(InputError, match=f"{match}.*was deleted"):
            fetch_text(file, tmp_path / file.name, tmp_path / "packed")
        assert not list(tmp_path.glob(f"{file.name}*"))


def photos(server: Server, count: int) -> SourceFile:
    parts = []
    for number in range(1, count + 1):
        name = f"image{number}.png"
        server.files[f"/{name}"] = png(np.full((1, 1, 3), number, np.uint8))
        parts.append(Part(SourceFile(name, (f"{server.address}/{name}",)), "plain"))
    return SourceFile("images.tar", parts=tuple(parts), holds="files")


def test_photograph_downloads_resume_and_become_one_tar(server: Server, tmp_path: Path) -> None:
    file, said = photos(server, 30), list[str]()
    server.files["/image20.png"], saved = b"<html>log in</html>", server.files["/image20.png"]
    with pytest.raises(InputError, match=r"/image20\.png: expected a PNG file"):
        fetch_text(file, tmp_path / "images.tar", tmp_path / "packed", said.append)
    assert said == [f"{server.address}/image1.png and 29 more files, of unknown size"]
    # Only the wrong file is removed. The next download continues with it.
    assert len(list((tmp_path / "packed").glob("*.png"))) == 19 and not list(tmp_path.glob("images.tar*"))
    server.files["/image20.png"], server.requests = saved, []
    path = fetch_text(file, tmp_path / "images.tar", tmp_path / "packed")
    assert [request for request, _ in server.requests] == [f"/image{number}.png" for number in range(20, 31)]
    with tarfile.open(path, "r:") as archive:
        assert archive.getnames() == [f"image{number}.png" for number in range(1, 31)]
        for member in archive:
            assert archive.extractfile(member).read() == server.files[f"/{member.name}"]
            assert (member.mtime, member.uid, member.mode) == (0, 0, 0o644)
    again = fetch_text(replace(file, name="same.tar"), tmp_path / "same.tar", tmp_path / "packed")
    assert again.read_bytes() == path.read_bytes()


def test_files_can_be_selected_by_name(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved(server, monkeypatch, "easy-vqa")
    server.files["/answers.txt"] = b"red\nblue\n"
    assert get("easy-vqa", tmp_path, ["answers.txt"]) == [tmp_path / "answers.txt"]
    with pytest.raises(InputError, match=r"easy-vqa has no file 'answers'; it has answers\.txt, "):
        get("easy-vqa", tmp_path, ["answers"])


# Published data, restored from copies in the shared folder.


COPIES = dict(sst2="stsa.binary.*", sst5="stsa.fine.*", mr="rt-polarity.all", subj="subj.all", trec="TREC.*.all")


@pytest.mark.parametrize("name", COPIES)
def test_converted_sentences_match_the_shared_copy(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_data: Path, name: str
) -> None:
    """Lines with a number and a blank before each sentence are converted to the lines of the copy."""
    moved(server, monkeypatch, name, known=True)
    base, whole = COPIES[name], {}
    files = {file.name for file in SOURCES[name].files}
    for split in ("train", "dev", "test") if "*" in base else ("",):
        if f"{split or 'train'}.tsv" in files:
            whole[split] = unpacked(shared_data / "sentence_cls" / f"{base.replace('*', split)}.tsv.xz")
            server.files[f"/{base.replace('*', split)}"] = whole[split].replace(b"\t", b" ")
    paths = {path.stem: path.read_bytes() for path in get(name, tmp_path)}
    if "" in whole:
        train, test = (iter(paths[s].split(b"\n")[:-1]) for s in ("train", "test"))
        count = whole[""].count(b"\n")
        merged = [next(test if number % 10 == 0 else train) for number in range(1, count + 1)]
        assert b"".join(line + b"\n" for line in merged) == whole[""]
        assert next(train, None) is next(test, None) is None
    else:
        assert paths == whole
