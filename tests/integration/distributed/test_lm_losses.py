"""Two processes compute the same gradient as one, without logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before the modules that import it

import torch

from integration.distributed.conftest import Launch
from integration.distributed.lm_losses import IDS, KINDS, LABELS, build_model, gradients
from tsallis.huggingface import lm_loss

pytestmark = pytest.mark.slow


def test_two_process_gradients_match_one_process(launch: Launch, tmp_path: Path) -> None:
    expected = {}
    for kind in KINDS:
        model = build_model(kind)
        lm_loss(model, {"input_ids": IDS, "labels": LABELS}, 1.5).backward()
        expected[kind] = gradients(model)
    request = tmp_path / "asked.json"
    request.write_text(json.dumps({"out": str(tmp_path / "out.pt")}))
    launch(Path(__file__).with_name("lm_losses.py"), request)
    result = torch.load(tmp_path / "out.pt", weights_only=True)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)
