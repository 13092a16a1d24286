"""Export a model with sparse attention through torch.export and AOTInductor, to run it without its Python code.

    python examples/export.py --folder exported

The script gives PyTorch's own encoder sparse attention and exports it with a variable batch size. It writes two files:
`model.pt2` for torch.export.load, and `compiled.pt2`, machine code that AOTInductor builds with the local C++ compiler.
It then loads both and compares their outputs with the model's. Programs that load these files must import `tsallis.nn`,
which registers the custom operators. For a program without Python, export to ONNX instead: its file contains only
standard operators.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from tsallis.nn import sparsify_module


class Encoder(nn.Module):
    """A small encoder made of PyTorch's own layers, with sparse attention."""

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
