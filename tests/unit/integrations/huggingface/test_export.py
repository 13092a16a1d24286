"""A sparsified model as an ONNX file."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")  # before what imports it
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnxruntime
import torch

from tiny_transformers import BY_NAME, build, inputs
from tsallis.integrations.huggingface import sparsify


@pytest.mark.slow
def test_a_model_computes_the_same_in_onnxruntime(tmp_path: Path) -> None:
    batch, model = inputs(BY_NAME["bert"]), sparsify(build("bert"), {0: 1.5, 1: "learned"})
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, kwargs=batch, f=path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    output = torch.from_numpy(session.run(None, {name: batch[name].numpy() for name in names})[0])
    with torch.no_grad():
        torch.testing.assert_close(output, model(**batch).logits, rtol=1e-4, atol=1e-4)
