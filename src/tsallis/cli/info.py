"""The command `tsallis info`."""

from __future__ import annotations


def info() -> None:
    """Versions and the machine."""
    import platform

    import torch

    import tsallis
    from tsallis.ops import backend

    print(f"tsallis {tsallis.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"threads {torch.get_num_threads()}, CUDA {'yes' if torch.cuda.is_available() else 'no'}")
    print(f"backend {backend.explain()}")
    print(f"backend on a GPU {backend.explain_gpu()}")
