"""Morphological inflection: a lemma and its tags to a form, as sequences of symbols (CoNLL-SIGMORPHON 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tsallis.data.reading import read_lines
from tsallis.errors import InputError, describe, shorten

COLUMNS = "lemma<TAB>form<TAB>tags"


@dataclass(frozen=True)
class InflectionExample:
    """One cell of a paradigm.

    Args:
        lemma: the citation form.
        tags: the morphological tags.
        form: the inflected form; None where it is to be predicted.
        language: its name; None where there is only one.

    Example:
        >>> example = InflectionExample("draw", ("V", "PST"), "drew", "english")
        >>> example.src_tokens()
        ['<lang:english>', '<tag:V>', '<tag:PST>', 'd', 'r', 'a', 'w']
        >>> example.tgt_tokens()
        ['d', 'r', 'e', 'w']
    """

    lemma: str
    tags: tuple[str, ...]
    form: str | None = None
    language: str | None = None

    def src_tokens(self) -> list[str]:
        """Return the language token if there is a language, the tags in the file's order, the lemma's characters."""
        language = [f"<lang:{self.language}>"] if self.language is not None else []
        return [*language, *(f"<tag:{tag}>" for tag in self.tags), *self.lemma]

    def tgt_tokens(self) -> list[str]:
        """Return the form's characters.

        Raises:
            ValueError: an example without a form.
        """
        if self.form is None:
            raise ValueError(f"the example {describe(self.lemma)} has no form")
        return list(self.form)


def read_inflection(path: Path | str, language: str | None = None, need_form: bool = True) -> list[InflectionExample]:
    r"""Read all examples of a file of `lemma<TAB>form<TAB>tags` lines, tags separated by `;`.

    Fields are taken as they are: a form may end in a space.

    Args:
        path: of the file, UTF-8.
        language: the language of the examples.
        need_form: whether every line needs a form; without, lines of two columns (`lemma<TAB>tags`) are read too.

    Returns:
        One example a line.

    Raises:
        InputError: a file that is missing, empty or not UTF-8, or a malformed line, each with its place.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "english.tsv"
        >>> _ = path.write_text("draw\tdrew\tV;PST\n")
        >>> read_inflection(path)
        [InflectionExample(lemma='draw', tags=('V', 'PST'), form='drew', language=None)]
    """
    return [
        parse_line(line, f"{path}:{number}", language, need_form)
        for number, line in enumerate(read_lines(path, COLUMNS), start=1)
    ]


def read_languages(pattern: str, languages: Sequence[str], need_form: bool = True) -> list[InflectionExample]:
    r"""Read the examples of many languages, one file each.

    Args:
        pattern: the path of a file; `{language}` in it stands for a language's name.
        languages: their names.
        need_form: as in :func:`read_inflection`.

    Returns:
        The examples of all languages, in the order of `languages`.

    Raises:
        InputError: a pattern without `{language}`, and the errors of :func:`read_inflection`.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for language, form in (("english", "drew"), ("german", "zog")):
        ...     _ = (folder / f"{language}.tsv").write_text(f"draw\t{form}\tV;PST\n")
        >>> [example.form for example in read_languages(f"{folder}/{{language}}.tsv", ["german", "english"])]
        ['zog', 'drew']
    """
    if "{language}" not in pattern:
        raise InputError(f"{pattern}: a path for several languages must contain {{language}}")
    return [
        example
        for language in languages
        for example in read_inflection(pattern.replace("{language}", language), language, need_form)
    ]


def parse_line(line: str, place: str, language: str | None = None, need_form: bool = True) -> InflectionExample:
    """One line; without `need_form` also `lemma<TAB>tags`."""
    fields = line.split("\t")
    expected = COLUMNS if need_form else f"lemma<TAB>tags or {COLUMNS}"
    if len(fields) not in ((3,) if need_form else (2, 3)):
        count = f"{len(fields)} column" + ("s" if len(fields) != 1 else "")
        raise InputError(f"{place}: expected {expected}, found {count}: {shorten(line)}")
    if fields[-1].endswith("\r"):
        # It would make the last tag another tag.
        raise InputError(f"{place}: expected a line that ends in LF, found CR LF")
    lemma, tags = fields[0], tuple(fields[-1].split(";"))
    form = fields[1] if len(fields) == 3 else None
    if not lemma or form == "":
        raise InputError(f"{place}: expected {expected}, found an empty {'lemma' if not lemma else 'form'}")
    if not all(tags):
        raise InputError(f"{place}: expected tags separated by single semicolons, found {describe(fields[-1])}")
    return InflectionExample(lemma, tags, form, language)
