"""The errors a user can cause: each says what was wrong and what would be right."""

from __future__ import annotations


class InputError(ValueError):
    """A file, a setting or an argument that cannot be used as it is.

    The message is one line and complete: where it is (file and line, or the path of a setting), what was found,
    and what was expected. The commands print it without a traceback and leave with exit status 2.

    >>> raise InputError("verbs.tsv:3: expected lemma<TAB>form<TAB>tags, found 1 column")
    Traceback (most recent call last):
    tsallis.errors.InputError: verbs.tsv:3: expected lemma<TAB>form<TAB>tags, found 1 column
    """
