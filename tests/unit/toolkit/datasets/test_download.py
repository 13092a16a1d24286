"""Downloads and unpacking, tested with a local server that interrupts transfers and sends wrong content."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from http_server import CONTENT, Server, packed_in, tar, zipped
from tsallis.errors import InputError
from tsallis.toolkit.datasets import download, registry
from tsallis.toolkit.datasets.archive import LONGEST, fetch_text
from tsallis.toolkit.datasets.download import Part, SourceFile, fetch
from tsallis.toolkit.datasets.registry import Source, get

DIGEST = hashlib.sha256(CONTENT).hexdigest()


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    assert fetch(server.file(), path) == path
    assert path.read_bytes() == CONTENT
    assert fetch(server.file(), path) == path
    assert server.requests == [("/file", None)]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_interrupted_downloads_resume(server: Server, tmp_path: Path) -> None:
    path, part = tmp_path / "file", tmp_path / "file.part"
    server.cut = 100_000
    for saved in (100_000, 200_000):
        with pytest.raises(InputError, match=rf"/file: .*; {saved} of 256000 bytes are kept; run the same command"):
            fetch(server.file(), path)
        assert not path.exists() and part.read_bytes() == CONTENT[:saved]
    fetch(server.file(), path)
    assert path.read_bytes() == CONTENT and not part.exists()
    assert [request for _, request in server.requests] == [None, "bytes=100000-", "bytes=200000-"]


def test_servers_without_ranges_send_the_whole_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.ranges = False
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == [("/file", "bytes=5000-")]


def test_a_wrong_range_raises(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.shift = 7
    with pytest.raises(InputError, match=r"from 5000 to the end .* range 'bytes 5007-255999/256000'"):
        fetch(server.file(), tmp_path / "file")
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:5000] and not (tmp_path / "file").exists()


def test_a_complete_part_file_needs_no_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == []


@pytest.mark.parametrize("part", [b"x" * 5000, b"x" * len(CONTENT), CONTENT + b"x"], ids=["begun", "whole", "long"])
def test_wrong_part_files_are_downloaded_again(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    # Only a part that is shorter than the file is resumed.
    begun = [("/file", "bytes=5000-")] if len(part) < len(CONTENT) else []
    assert server.requests == [*begun, ("/file", None)]


def test_downloads_with_wrong_content_are_deleted(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT[:-1] + b"x"
    with pytest.raises(InputError, match="the download differs from the known file"):
        fetch(server.file(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_downloads_stop_at_the_known_size(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    digest = download.digest_file
    monkeypatch.setattr(download, "digest_file", lambda p: (sizes.append(p.stat().st_size), digest(p))[1])
    server.files["/file"], server.length = b"x" * 2_000_000, False
    with pytest.raises(InputError, match="differs from the known file"):
        fetch(server.file(), tmp_path / "file")
    assert sizes == [len(CONTENT)] and list(tmp_path.iterdir()) == []


def test_changed_local_files_raise_and_are_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match="differs from the known file"):
        fetch(server.file(), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine" and server.requests == []


def test_the_second_address_is_used_if_the_first_is_missing(server: Server, tmp_path: Path) -> None:
    assert fetch(server.file("/gone", "/file"), tmp_path / "file").read_bytes() == CONTENT
    assert [path for path, _ in server.requests] == ["/gone", "/file"]
    with pytest.raises(InputError, match=r"/gone and .*/lost: not found on the server"):
        fetch(server.file("/gone", "/lost"), tmp_path / "other")


@pytest.mark.parametrize("status", [403, 416, 500, 503])
def test_http_error_statuses_raise(server: Server, tmp_path: Path, status: int) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.status = status
    with pytest.raises(InputError, match=f"the server answered {status}"):
        fetch(server.file("/file", "/file"), tmp_path / "file")
    assert len(server.requests) == 1
    server.status = None
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT


def test_refused_connections_raise(server: Server, tmp_path: Path) -> None:
    file = SourceFile("file", ("http://127.0.0.1:1/file",), len(CONTENT), DIGEST)
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/file: .*refused.*; 0 of 256000 bytes are kept"):
        fetch(file, tmp_path / "file")


def test_unwritable_paths_raise(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"file/below: can't be written: .*File exists: '.*/file'"):
        fetch(server.file(), tmp_path / "file" / "below")
    with pytest.raises(InputError, match=r"can't be read: Is a directory"):
        fetch(server.file(), tmp_path)
    assert server.requests == []


def test_get_selects_files_by_language(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["old-irish-dev", "irish-gaelic-dev", "irish-dev"]
    server.files = {f"/{name}": name.encode() for name in names}
    files = [SourceFile(n, (f"{server.address}/{n}",), len(n), hashlib.sha256(n.encode()).hexdigest()) for n in names]
    monkeypatch.setitem(registry.SOURCES, "tiny", Source("tiny", "", "", "", tuple(files)))
    assert get("tiny", tmp_path, ["irish"]) == [tmp_path / "irish-dev"]
    assert [p.name for p in get("tiny", str(tmp_path))] == names
    assert [path for path, _ in server.requests] == ["/irish-dev", "/old-irish-dev", "/irish-gaelic-dev"]
    assert all((tmp_path / name).read_text() == name for name in names)
    with pytest.raises(InputError, match=r"no language 'welsh', 'Irish'; it has irish, irish-gaelic, old-irish"):
        get("tiny", tmp_path, ["irish", "welsh", "Irish"])
    with pytest.raises(InputError, match=r"unknown data set 'tinny', expected one of .*sigmorphon2018"):
        get("tinny", tmp_path)


# Files with a known address, but without a known size or digest.


def test_digests_of_unknown_files_are_recorded_and_checked(server: Server, tmp_path: Path) -> None:
    file, path, record = SourceFile("file", (f"{server.address}/file",)), tmp_path / "file", tmp_path / "file.sha256"
    fetch(file, path)
    assert path.read_bytes() == CONTENT and record.read_text() == f"{DIGEST}  file\n"
    fetch(file, path)
    assert len(server.requests) == 1
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"/file: differs from the file that file\.sha256 describes .* delete it"):
        fetch(file, path)
    path.unlink()
    server.files["/file"] = b"another version"
    with pytest.raises(InputError, match=r"file that file\.sha256 describes \(wrong checksum\); it was deleted"):
        fetch(file, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file.sha256"] and record.read_text() == f"{DIGEST}  file\n"
    server.files["/file"] = CONTENT
    assert fetch(file, path).read_bytes() == CONTENT


def test_digests_of_existing_unknown_files_are_recorded(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\n")
    digest = hashlib.sha256(b"a\nb\n").hexdigest()
    fetch(SourceFile("file", (f"{server.address}/file",), lines=2), tmp_path / "file")
    assert (tmp_path / "file.sha256").read_text() == f"{digest}  file\n"
    (tmp_path / "other").write_bytes(b"a\nb\n")
    with pytest.raises(InputError, match="other: expected 3 lines, found 2"):
        fetch(SourceFile("other", (f"{server.address}/file",), lines=3), tmp_path / "other")
    assert server.requests == [] and not (tmp_path / "other.sha256").exists()


@pytest.mark.parametrize("length", [True, False], ids=["length", "no length"])
def test_interrupted_downloads_of_unknown_size_resume(server: Server, tmp_path: Path, length: bool) -> None:
    file, path = SourceFile("file", (f"{server.address}/file",)), tmp_path / "file"
    server.cut = 100_000
    with pytest.raises(InputError, match="100000 of an unknown number of bytes are kept"):
        fetch(file, path)
    server.cut, server.length = None, length
    assert fetch(file, path).read_bytes() == CONTENT
    assert [request for _, request in server.requests] == [None, "bytes=100000-"]


@pytest.mark.parametrize("version", ['"1"', '"2"'])
def test_partial_files_resume_only_with_the_same_version(server: Server, tmp_path: Path, version: str) -> None:
    file, path = SourceFile("file", (f"{server.address}/file",)), tmp_path / "file"
    server.cut, server.version = 100_000, '"1"'
    with pytest.raises(InputError, match="100000 of"):
        fetch(file, path)
    server.cut, server.version = None, version
    start, rest = (CONTENT[:100_000] if version == '"1"' else b"2" * 100_000), CONTENT[100_000:]
    server.files["/file"] = start + rest
    assert fetch(file, path).read_bytes() == start + rest
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "file.sha256"]


def test_full_part_files_of_unknown_size_are_downloaded_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * len(CONTENT))
    assert fetch(SourceFile("file", (f"{server.address}/file",)), tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == [("/file", "bytes=256000-"), ("/file", None)]


def test_files_are_checked_against_a_published_md5(server: Server, tmp_path: Path) -> None:
    md5 = hashlib.md5(CONTENT).hexdigest()
    file = SourceFile("file", (f"{server.address}/file",), md5=md5)
    fetch(file, tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    server.files["/file"] = CONTENT[:-1] + b"x"
    with pytest.raises(InputError, match="differs from the known file"):
        fetch(file, tmp_path / "again")
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match="differs from the known file"):
        fetch(file, tmp_path / "file")


# Texts in packed files.

TEXT = "eins\nzwei\nd\u2028rei\r\n".encode()
OTHER = b"one\ntwo\nthree"  # the last line has no line end


PACKINGS = {
    "gz": (gzip.compress(TEXT), None),
    "xz": (lzma.compress(TEXT), None),
    "tar": (tar({"a/text": b"no\n", "text": TEXT, "text2": b"no\n"}), "text"),
    "zip": (zipped({"a/text": b"no\n", "text": TEXT, "text2": b"no\n"}), "text"),
}


def text_file(server: Server, *parts: Part, content: bytes | None = None, lines: int | None = None) -> SourceFile:
    sha256 = None if content is None else hashlib.sha256(content).hexdigest()
    return SourceFile("text", size=None if content is None else len(content), sha256=sha256, lines=lines, parts=parts)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_text_is_unpacked_and_checked(server: Server, tmp_path: Path, packing: str) -> None:
    part = packed_in(server, packing, *PACKINGS[packing])
    file, path, packed = text_file(server, part, content=TEXT, lines=3), tmp_path / "text", tmp_path / "packed"
    said: list[str] = []
    assert fetch_text(file, path, packed, said.append) == path
    assert path.read_bytes() == TEXT
    assert said == [f"{server.address}/archive1, of unknown size"]
    assert fetch_text(file, path, packed, said.append) == path
    assert len(server.requests) == 1 and len(said) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["packed", "text"]
    path.write_bytes(b"mine")
    with pytest.raises(InputError, match="text: differs from the known file"):
        fetch_text(file, path, packed)


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz"])
def test_tar_files_of_any_compression_are_unpacked(server: Server, tmp_path: Path, mode: str) -> None:
    file = text_file(server, packed_in(server, "tar", tar({"text": TEXT}, mode), "text"), content=TEXT)
    assert fetch_text(file, tmp_path / "text", tmp_path / "packed").read_bytes() == TEXT


def test_texts_of_several_parts_are_concatenated(server: Server, tmp_path: Path) -> None:
    parts = packed_in(server, "gz", gzip.compress(OTHER)), packed_in(server, "xz", lzma.compress(TEXT))
    file = text_file(server, *parts, lines=6)
    assert fetch_text(file, tmp_path / "text", tmp_path / "packed").read_bytes() == OTHER + b"\n" + TEXT


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("known", [True, False])
def test_damaged_archives_are_deleted_unless_known(server: Server, tmp_path: Path, packing: str, known: bool) -> None:
    content, member = PACKINGS[packing]
    damaged = content[: len(content) // 2]
    part = packed_in(server, packing, damaged, member)
    sha256 = hashlib.sha256(damaged).hexdigest() if known else None
    part = Part(SourceFile(part.archive.name, part.archive.urls, sha256=sha256), packing, member)
    file = text_file(server, part, content=TEXT)
    with pytest.raises(InputError, match=r"archive1.*: can't be read: ") as error:
        fetch_text(file, tmp_path / "text", tmp_path / "packed")
    assert str(error.value).endswith("; the download was deleted") != known
    assert not (tmp_path / "text").exists() and not (tmp_path / "text.part").exists()
    # An archive with the published digest stays: a new download would be equally damaged.
    assert (tmp_path / "packed" / "archive1").exists() == known
    if not known:
        server.files["/archive1"] = content
        assert fetch_text(file, tmp_path / "text", tmp_path / "packed").read_bytes() == TEXT


@pytest.mark.parametrize("packing", ["tar", "zip"])
def test_archive_members_must_match_the_exact_name(server: Server, tmp_path: Path, packing: str) -> None:
    members = {"../text": TEXT, "./text": TEXT, "/text": TEXT, "TEXT": TEXT}
    part = packed_in(server, packing, (tar if packing == "tar" else zipped)(members), "text")
    with pytest.raises(InputError, match=r"archive1: text: can't be read: .*(missing from the archive|no item)"):
        fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed")
    assert [p.name for p in tmp_path.iterdir()] == ["packed"] and list((tmp_path / "packed").iterdir()) == []


def test_links_in_archives_are_not_followed(server: Server, tmp_path: Path) -> None:
    part = packed_in(server, "tar", tar({"else": TEXT}, link="text"), "text")
    with pytest.raises(InputError, match=r"text: .*missing from the archive"):
        fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed")
    part = packed_in(server, "tar", tar({"text": TEXT}, link="text"), "text")
    assert fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed").read_bytes() == TEXT


@pytest.mark.parametrize(("lines", "match"), [(2, "expected 2 lines, found 3"), (4, "expected 4 lines, found 3")])
def test_texts_with_a_wrong_number_of_lines_are_deleted(server: Server, tmp_path: Path, lines: int, match: str) -> None:
    part = packed_in(server, "gz", gzip.compress(TEXT))
    with pytest.raises(InputError, match=match):
        fetch_text(text_file(server, part, lines=lines), tmp_path / "text", tmp_path / "packed")
    assert [p.name for p in tmp_path.iterdir()] == ["packed"]


def test_texts_with_wrong_content_are_deleted(server: Server, tmp_path: Path) -> None:
    part = packed_in(server, "gz", gzip.compress(TEXT.upper()))
    with pytest.raises(InputError, match="the download differs from the known file"):
        fetch_text(text_file(server, part, content=TEXT), tmp_path / "text", tmp_path / "packed")
    with pytest.raises(InputError, match=f"expected {len(TEXT) + 1} bytes, found {len(TEXT)}"):
        fetch_text(text_file(server, part, content=TEXT + b"x"), tmp_path / "text", tmp_path / "packed")
    assert [p.name for p in tmp_path.iterdir()] == ["packed"]


def test_digests_of_unknown_texts_are_recorded_and_checked(server: Server, tmp_path: Path) -> None:
    part = packed_in(server, "gz", gzip.compress(TEXT))
    file, path = text_file(server, part), tmp_path / "text"
    fetch_text(file, path, tmp_path / "packed")
    assert (tmp_path / "text.sha256").read_text() == f"{hashlib.sha256(TEXT).hexdigest()}  text\n"
    path.unlink()
    for saved in (tmp_path / "packed").iterdir():
        saved.unlink()
    server.files["/archive1"] = gzip.compress(TEXT.upper())
    with pytest.raises(InputError, match=r"the download differs from the file that text\.sha256 describes"):
        fetch_text(file, path, tmp_path / "packed")
    assert not path.exists()


def test_too_long_lines_raise(server: Server, tmp_path: Path) -> None:
    part = packed_in(server, "gz", gzip.compress(b"x" * LONGEST + b"\n" + b"y" * (LONGEST + 1)))
    with pytest.raises(InputError, match=f"archive1: .*expected text, found a line of more than {LONGEST} bytes"):
        fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed")


def unpacked(server: Server, folder: Path, content: str | bytes, **options: object) -> list[str]:
    raw = content.encode() if isinstance(content, str) else content
    part = packed_in(server, "gz", gzip.compress(raw), **options)
    name = f"text{len(server.files)}"
    path = fetch_text(SourceFile(name, parts=(part,)), folder / name, folder / "packed")
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_sgml_segments_are_converted_to_lines(server: Server, tmp_path: Path) -> None:
    sgml = '<srcset>\n<doc id="1">\n<seg id="1"> Ein  Satz\u00a0hier. </seg>\n  <seg id="2"></seg>\n</doc>\n</srcset>\n'
    assert unpacked(server, tmp_path, sgml, form="segments") == ["Ein Satz hier.", ""]
    with pytest.raises(InputError, match=r"expected a line that matches .*, found '<seg id=\"1\">Ein'"):
        unpacked(server, tmp_path, '<seg id="1">Ein\nSatz</seg>\n', form="segments")
    with pytest.raises(InputError, match="can't decode byte 0xe4"):
        unpacked(server, tmp_path, b"<seg id='1'>M\xe4rz</seg>\n", form="segments")


def test_talks_are_converted_to_lines(server: Server, tmp_path: Path) -> None:
    talks = "<url>http://x</url>\n<title>Title</title>\n Ein  Satz. \n\n<talkid>1</talkid>\nNoch < einer.\n"
    assert unpacked(server, tmp_path, talks, form="talks") == ["Ein Satz.", "", "Noch < einer."]


def test_every_selects_or_skips_each_nth_line(server: Server, tmp_path: Path) -> None:
    text = "".join(f"{n}\n" for n in range(1, 8))
    assert unpacked(server, tmp_path, text, every=3) == ["3", "6"]
    assert unpacked(server, tmp_path, text, every=-3) == ["1", "2", "4", "5", "7"]


def test_pairs_are_split_into_aligned_sides(server: Server, tmp_path: Path) -> None:
    text = "".join(f"one {n}\teins {n}\tby somebody\n" for n in range(9000))
    for split, count in (("train", 1000), ("dev", 4000), ("test", 4000)):
        first, second = (unpacked(server, tmp_path, text, form="clusters", split=split, column=n) for n in (0, 1))
        assert len(first) == count and [line.replace("one", "eins") for line in first] == second
    with pytest.raises(InputError, match=r"expected a line that matches .*, found 'alone'"):
        unpacked(server, tmp_path, "alone\n", form="clusters", split="dev")


@pytest.fixture
def corpus(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    archive = packed_in(server, "tar", tar({"c/text.de": TEXT, "c/text.en": OTHER})).archive
    files = [SourceFile(f"dev.{side}", parts=(Part(archive, "tar", f"c/text.{side}"),)) for side in ("de", "en")]
    plain = SourceFile("test.de", (f"{server.address}/file",), len(CONTENT), DIGEST)
    source = Source("corpus", "Title", "licence", "citation", (*files, plain), parallel=True)
    monkeypatch.setitem(registry.SOURCES, "corpus", source)
    return source


def test_get_downloads_a_parallel_corpus_once(server: Server, tmp_path: Path, corpus: Source) -> None:
    assert corpus.languages() == ["de", "en"]
    said: list[str] = []
    assert [p.name for p in get("corpus", tmp_path, report=said.append)] == ["dev.de", "dev.en", "test.de"]
    assert len(said) == 1
    names = ["dev.de", "dev.de.sha256", "dev.en", "dev.en.sha256", "test.de"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert [path for path, _ in server.requests] == ["/archive1", "/file"]
    get("corpus", tmp_path)
    assert len(server.requests) == 2
    with pytest.raises(InputError, match="corpus has no language 'fr'; it has de, en"):
        get("corpus", tmp_path, ["fr"])


def test_sides_with_different_numbers_of_lines_raise(server: Server, tmp_path: Path, corpus: Source) -> None:
    server.files["/archive1"] = tar({"c/text.de": TEXT, "c/text.en": b"one\n"})
    for _ in range(2):
        with pytest.raises(InputError, match=r"dev\.en: 1 lines, but dev\.de has 3; delete both"):
            get("corpus", tmp_path)


def test_simultaneous_downloads_wait_for_each_other(server: Server, tmp_path: Path, corpus: Source) -> None:
    folder = tmp_path / "new"
    server.pause = 0.05
    with ThreadPoolExecutor(4) as pool:
        for paths in pool.map(lambda _: get("corpus", folder), range(4)):
            assert [path.read_bytes() for path in paths] == [TEXT, OTHER + b"\n", CONTENT]
    assert [path for path, _ in server.requests] == ["/archive1", "/file"]
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_failed_downloads_leave_no_folder(server: Server, tmp_path: Path, corpus: Source) -> None:
    server.status = 503
    with pytest.raises(InputError, match="answered 503"):
        get("corpus", tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_archive_folder_are_kept(server: Server, tmp_path: Path, corpus: Source) -> None:
    (tmp_path / ".packed").mkdir()
    (tmp_path / ".packed" / "mine").write_bytes(b"")
    get("corpus", tmp_path)
    assert [p.name for p in (tmp_path / ".packed").iterdir()] == ["mine"]


def forged_zip(flag: int = 0, method: int = 0) -> bytes:
    """Return a zip file with the given flags and compression method in the headers of its member."""
    blob = bytearray(zipped({"text": TEXT}))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = blob.index(signature) + at
        blob[start] |= flag
        blob[start + 2] |= method
    return bytes(blob)


def zip_with_a_name_of_no_text() -> bytes:
    """Return a zip file whose local header declares a UTF-8 name that is not UTF-8; the directory is intact."""
    content = zipped({"text": TEXT}).replace(b"text", b"t\xddxt", 1)
    return content[:6] + b"\x00\x08" + content[8:]


@pytest.mark.parametrize(
    ("packing", "content"),
    [
        *(("tar", start) for start in (b"\x1f\x8b\x08\x04\xa3\xbc\x00/", b"\x1f\x8b", b"\xfd7zXZ\0", b"")),
        *(("zip", blob) for blob in (forged_zip(flag=1), forged_zip(method=99), zip_with_a_name_of_no_text())),
    ],
)
def test_invalid_archives_raise_and_are_deleted(server: Server, tmp_path: Path, packing: str, content: bytes) -> None:
    part = packed_in(server, packing, content, "text")
    with pytest.raises(InputError, match=r"archive1: text: can't be read: .*; the download was deleted"):
        fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed")
    assert list((tmp_path / "packed").iterdir()) == []


@pytest.mark.parametrize("packing", ["gz", "xz", "zip", "tar"])
def test_compression_bombs_raise(server: Server, tmp_path: Path, packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacking has a limit even if the number of lines is unknown."""
    monkeypatch.setattr("tsallis.toolkit.data.io.PLAUSIBLE", 1 << 16)
    lines = b"\n" * (1 << 22)
    content = {
        "gz": lambda: gzip.compress(lines),
        "xz": lambda: lzma.compress(lines),
        "zip": lambda: zipped({"text": lines}),
        "tar": lambda: tar({"text": lines}, "w:gz"),
    }[packing]()
    part = packed_in(server, packing, content, "text" if packing in ("zip", "tar") else None)
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        fetch_text(text_file(server, part), tmp_path / "text", tmp_path / "packed")
    assert not (tmp_path / "text").exists() and not (tmp_path / "text.part").exists()
