"""The page about training shows every setting, with its default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tsallis.toolkit.tasks.classification import ClassificationData, ClassifierConfig
from tsallis.toolkit.tasks.sequences import RNNConfig, TransformerConfig
from tsallis.toolkit.tasks.vqa import AnswererConfig, VisualData
from tsallis.toolkit.training import Settings

DOCS = Path(__file__).parents[4] / "docs"
PAGE = DOCS / "training.md"


def _samples(page: Path, section: str) -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    return [content[section] for content in map(yaml.safe_load, blocks) if section in content]


def test_all_settings_of_trainings_are_shown_with_their_defaults() -> None:
    shown: dict[str, Any] = {}
    for sample in _samples(PAGE, "training"):
        shown = {**sample, **shown}
    examples = ("init_from", "src_embeddings")
    defaults = Settings().model_dump(mode="json", exclude=set(examples))
    assert shown.keys() == {*defaults, *examples}
    assert {key: shown[key] for key in defaults} == defaults


@pytest.mark.parametrize("model", [RNNConfig, TransformerConfig], ids=["rnn", "transformer"])
def test_all_settings_of_models_are_shown_with_their_defaults(model: Any) -> None:
    architecture = model.model_fields["architecture"].annotation.__args__[0]
    (shown,) = (s for s in _samples(PAGE, "model") if len(s) > 1 and s.get("architecture") == architecture)
    assert shown == model(architecture=architecture).model_dump()


@pytest.mark.parametrize(
    ("data", "model"),
    [(ClassificationData, ClassifierConfig), (VisualData, AnswererConfig)],
    ids=["classification", "visual"],
)
def test_all_settings_of_models_with_labels_are_shown_with_their_defaults(data: Any, model: Any) -> None:
    name = data.model_fields["task"].annotation.__args__[0]
    (shown,) = (s for s in _samples(PAGE, "model") if s.get("architecture") == model().architecture)
    assert shown == model().model_dump()
    (shown,) = (s for s in _samples(PAGE, "data") if s.get("task") == name)
    needed = {key: value for key, value in shown.items() if data.model_fields[key].is_required()}
    examples = {key: shown[key] for key in ("folder", "test")}
    assert shown == {**data(**needed).model_dump(), **examples}
