"""Tests of sparsified models exported to ONNX and by torch.export."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before the imports that need it
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnxruntime
import torch
from torch import Tensor
from torch.export import Dim

from tiny_transformers import BY_NAME, VOCABULARY, build, inputs
from tsallis.huggingface import FixedAlpha, sparsify

SIZES = {0: Dim("batch"), 1: Dim("length", max=64)}


def longer_batch() -> dict[str, Tensor]:
    """Return more and longer sentences than the example inputs of the export."""
    ids = torch.randint(3, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["of one size", "of any size"])
def test_onnx_model_matches_pytorch(sizes: str, tmp_path: Path) -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), {0: 1.5, 1: "learned"})
    path = tmp_path / "model.onnx"
    shapes = {name: SIZES for name in batch} if sizes == "of any size" else None
    torch.onnx.export(model, kwargs=batch, f=path, dynamo=True, verbose=False, dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    batch = longer_batch() if shapes else batch
    output = torch.from_numpy(session.run(None, {name: batch[name].numpy() for name in names})[0])
    with torch.no_grad():
        torch.testing.assert_close(output, model(**batch).logits, rtol=1e-4, atol=1e-4)


def test_fixed_alpha_is_exported_to_onnx_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    module, owner = FixedAlpha(1.5), sys.modules[FixedAlpha.__module__]
    monkeypatch.setattr(owner, "traced", lambda: True)
    assert module() is module.value
    monkeypatch.setattr(owner, "exporting_to_onnx", lambda: True)
    assert module() == 1.5
    module.set(1.75)
    assert module() == 1.75
    module.value.fill_(1.25)  # the new value has not been read yet
    assert module() is module.value
    monkeypatch.setattr(owner, "traced", lambda: False)
    monkeypatch.setattr(owner, "exporting_to_onnx", lambda: False)
    assert module() == 1.25
    monkeypatch.setattr(owner, "exporting_to_onnx", lambda: True)
    assert module() == 1.25
    module.value = torch.tensor(2.0)
    monkeypatch.setattr(owner, "traced", lambda: True)
    assert module() is module.value


@pytest.mark.slow
def test_exported_program_matches_for_other_sizes() -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), {0: 1.5, 1: "learned"})
    shapes = {name: SIZES for name in batch}
    program = torch.export.export(model, (), batch, dynamic_shapes=shapes, strict=False).module()
    with torch.no_grad():
        torch.testing.assert_close(program(**longer_batch()).logits, model(**longer_batch()).logits)
