"""The command `tsallis score`."""

from __future__ import annotations

import json
import sys

from tsallis.cli.input import line_blocks, one_batch, open_run
from tsallis.cli.options import FileArgument, Images, Json, Language, RunArgument, Which


def score(
    run: RunArgument,
    file: FileArgument = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Log-probabilities of known outputs; -inf where the model excludes one.

    Lines are `lemma<TAB>form<TAB>tags`, `source<TAB>target` for translations, `label<TAB>text` for documents, or
    `image<TAB>question<TAB>answer`.
    """
    from tsallis.search import score as score_batch

    loaded, task = open_run(run, checkpoint)
    for first, lines in line_blocks(loaded, task, file, gold=True, language=language, images=images):
        totals = [
            total
            for batch in one_batch(lines.corpus)
            for total in score_batch(loaded.model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).tolist()
        ]
        for number, total in zip(lines.numbers, totals, strict=True):
            possible = total != float("-inf")
            if as_json:
                line = first + number + 1
                print(json.dumps({"line": line, "possible": possible, "log_prob": total if possible else None}))
            else:
                print(f"{total:.6f}" if possible else "-inf")
        sys.stdout.flush()
