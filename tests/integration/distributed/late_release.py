"""Run by two processes: a thread of gloo releases a tensor of the first process while that process exits."""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

if os.environ["RANK"] == "0":
    atexit.register(sum, range(10**8))  # registered first, so it runs last: it holds the GIL until Python shuts down

import torch
import torch.distributed as dist

from tsallis.toolkit.cli import main
from tsallis.toolkit.training.distributed import init_distributed

exiting = Path(sys.argv[1])
groups = []  # PyTorch's caches keep the group of a sharded model in the same way


def work() -> None:
    with init_distributed("cpu") as world:
        groups.append(dist.group.WORLD)
        if world.main:
            atexit.register(exiting.touch)
            dist.all_reduce(torch.ones(1), async_op=True)
            print("to the end")
            return
        while not exiting.exists():
            time.sleep(0.001)
        time.sleep(0.2)  # the first process holds its GIL by now
        dist.all_reduce(torch.ones(1))


main(work)
