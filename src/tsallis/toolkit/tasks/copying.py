"""Vocabularies of models that copy symbols of the source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tsallis.models.copying import CopyOutput, with_unknown
from tsallis.search import Ensemble
from tsallis.symbols import FIRST, UNK
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.vocabulary import Vocabulary, split_symbols
from tsallis.toolkit.tasks.types import Data, Lines
from tsallis.toolkit.training.run_folder import Run


def copied_symbols(src: Any, tgt: Any) -> list[int]:
    """Return, for each source symbol, the target symbol with the same spelling; -1 if there is none.

    >>> copied_symbols(Vocabulary(["<tag:V>", "a", "b"]), Vocabulary(["b", "a"]))
    [-1, -1, -1, -1, -1, 5, 4]
    """
    numbers = {tgt.name(number): number for number in range(FIRST, len(tgt))}
    return [-1] * FIRST + [numbers.get(src.name(number), -1) for number in range(FIRST, len(src))]


def with_source_symbols(task: Any, data: Data) -> Data:
    """Return data whose target vocabulary includes the source symbols that an output can contain.

    Unknown source symbols of the development data are added only to :attr:`Data.extended_vocabulary`. Subwords are not
    extended: models copy only pieces that occur in both vocabularies.
    """
    src, tgt = data.vocabularies.src, data.vocabularies.tgt
    if not isinstance(tgt, Vocabulary) or not isinstance(src, Vocabulary):
        return data
    vocabularies = replace(data.vocabularies, tgt=extended(tgt, src.symbols))
    targets = [vocabularies.tgt.encode(task.first_answer(reference)) for reference in data.dev.references]
    dev = replace(data.dev, corpus=Corpus(data.dev.corpus.src, targets, data.dev.corpus.counts))
    run, unknown, dev = read_unknown(task, Run(Path(), None, src, vocabularies.tgt, {}, {}), dev)
    return replace(data, dev=dev, vocabularies=vocabularies, extended_vocabulary=(run.tgt_vocab, unknown))


def extended(vocabulary: Vocabulary, symbols: Iterable[str]) -> Vocabulary:
    """Return a vocabulary with new symbols appended; symbols that an output can't contain are skipped.

    >>> extended(Vocabulary(["a"]), ["b", "<tag:V>", "a"]).symbols
    ('a', 'b')
    """
    new_symbols = [s for s in symbols if s not in vocabulary and is_copied(s, vocabulary.separator)]
    return Vocabulary([*vocabulary.symbols, *new_symbols], vocabulary.separator)


def is_copied(symbol: str, separator: str) -> bool:
    """Return whether a source symbol can be a symbol of the output; tags such as `<tag:V>` can't."""
    tag = len(symbol) > 2 and symbol.startswith("<") and symbol.endswith(">")
    return not tag and [*split_symbols(symbol, separator)] == [symbol]


def copies(model: Any) -> bool:
    """Return whether a model, or every member of an ensemble, copies source symbols."""
    return all(isinstance(getattr(member, "output", None), CopyOutput) for member in getattr(model, "models", (model,)))


def copy_unknown(task: Any, run: Run, lines: Lines) -> tuple[Run, Lines]:
    """Extend the vocabularies of a run by the unknown source symbols that its model can copy.

    Args:
        task: Task of the run.
        run: Run whose model may copy.
        lines: Lines that were read with the run.

    Returns:
        The run with extended vocabularies, and the lines encoded with them. Both are unchanged if no symbol is added.
    """
    if not copies(run.model):
        return run, lines
    extended_run, targets, lines = read_unknown(task, run, lines)
    if not targets:
        return run, lines
    members = [with_unknown(member, targets) for member in getattr(run.model, "models", (run.model,))]
    return replace(extended_run, model=Ensemble(members) if isinstance(run.model, Ensemble) else members[0]), lines


def read_unknown(task: Any, run: Run, lines: Lines) -> tuple[Run, list[int], Lines]:
    """Extend the vocabularies of a run by the unknown source symbols of lines.

    Return the extended run, the target symbol of each new source symbol, and the lines encoded again. Subwords are not
    extended. In a reference, a new symbol stays unknown unless the source of the same line contains it.
    """
    src, tgt = run.src_vocab, run.tgt_vocab
    if not isinstance(src, Vocabulary) or not isinstance(tgt, Vocabulary):
        return run, [], lines
    sources = [[int(number) for number in source] for source in lines.corpus.src]
    texts = {row: task.text_symbols(lines.titles[row], src) for row, source in enumerate(sources) if UNK in source}
    found = dict.fromkeys(symbol for symbols in texts.values() for symbol in symbols)
    new_symbols = [symbol for symbol in found if symbol not in src and is_copied(symbol, tgt.separator)]
    if not new_symbols:
        return run, [], lines
    tgt = extended(tgt, new_symbols)
    extended_run = replace(run, src_vocab=Vocabulary([*src.symbols, *new_symbols], src.separator), tgt_vocab=tgt)
    numbers, targets = {symbol: number for number, symbol in enumerate(new_symbols, len(src))}, tgt.encode(new_symbols)
    for row, symbols in texts.items():
        source = sources[row]
        for position, symbol in enumerate(symbols, len(source) - len(symbols)):
            source[position] = numbers.get(symbol, source[position])
    rows = []
    for source, reference in zip(sources, lines.references, strict=True):
        copyable = {targets[number - len(src)] for number in source if number >= len(src)}
        target = tgt.encode(task.first_answer(reference))
        rows.append([t if t < len(run.tgt_vocab) or t in copyable else UNK for t in target])
    return extended_run, targets, replace(lines, corpus=Corpus(sources, rows, lines.corpus.counts))
