"""A model with sparse attention as files that run without its Python code: torch.export and AOTInductor.

    python examples/export.py --folder exported

An encoder of PyTorch's gets sparse attention, is exported with a batch of any size, and is written twice: `model.pt2`,
which torch.export.load reads, and `compiled.pt2`, machine code that AOTInductor makes with the machine's C++ compiler.
Both are loaded again and compared with the model. The operators that the files name are registered by
`import tsallis.nn`, which whoever loads them needs; for a program without Python export to ONNX, whose file holds
PyTorch's operations alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from tsallis.nn import sparsify_module


class Encoder(nn.Module):
    """A small encoder of vectors with PyTorch's own layers, whose attention is replaced."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = sparsify_module(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), alpha=1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("exported"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, example = Encoder().eval(), torch.randn(2, 10, 32)
    with torch.no_grad():
        program = torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},)
        )
        torch.export.save(program, folder / "model.pt2")
        path = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "compiled.pt2"))
        loaded = {
            "torch.export": torch.export.load(folder / "model.pt2").module(),
            "AOTInductor": torch._inductor.aoti_load_package(path),
        }
        batch = torch.randn(7, 10, 32)
        expected = model(batch)
        for name, run in loaded.items():
            print(f"{name}: differs by {(run(batch) - expected).abs().max().item():.1e} at most")


if __name__ == "__main__":
    main()
