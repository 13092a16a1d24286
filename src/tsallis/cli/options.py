"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsallis.search_budget import MOST, PENALTY

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="Input file; default, and -: standard input.")
]
Beam = Annotated[int | None, typer.Option(min=1, max=MOST, help="Beam size; default: the run's.")]
LengthPenalty = Annotated[
    float | None,
    typer.Option(min=0, max=PENALTY, help="Rank by log-probability over this power of the length; default: the run's."),
]
CompetingEnds = Annotated[
    bool,
    typer.Option(
        "--competing-ends",
        help="Outputs must end among the beam's best continuations, as in other toolkits; default: as the run says.",
    ),
]
EveryEnd = Annotated[
    bool,
    typer.Option("--every-end", help="Every ending of a prefix in the beam is an output; default: as the run says."),
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Divide scores by it before the map, for draws: below 1 likelier symbols; default: 1."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Language = Annotated[str | None, typer.Option(help="The lines' language, for a run of several.")]
Images = Annotated[Path | None, typer.Option(help="Images that lines name; default: those of the config's test split.")]
SplitLanguage = Annotated[
    str | None, typer.Option("--language", help="FILE's language, for a run of several; of a split, only this one.")
]
TextLanguage = Annotated[
    str | None, typer.Option("--language", help="--text's language, for a run of several; of a split, only this one.")
]
SplitImages = Annotated[
    Path | None, typer.Option("--images", help="Images that lines name; default: those of the config's split.")
]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN2", help="Another run: the ensemble's probabilities are the means of all."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last or average (see `tsallis average`).")]
