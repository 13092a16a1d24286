"""Run by two processes: the loss of a language model without its logits, each on its own rows."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from integration.distributed.parts import arguments, plain
from tiny_transformers import build
from tsallis.huggingface import lm_loss
from tsallis.toolkit.training.distributed import exit_process, init_distributed

IDS = torch.arange(5, 33).reshape(4, 7)
LABELS = IDS.masked_fill(torch.arange(7) < torch.tensor([[0], [2], [5], [3]]), -100)
COUNT = int((LABELS[:, 1:] != -100).sum())


def main() -> None:
    request = arguments()
    torch.set_num_threads(1)
    with init_distributed("cpu") as world:
        model = build("llama")
        # As the Trainer of Transformers wraps a model.
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
        rows = slice(2 * world.rank, 2 * world.rank + 2)
        batch = {"input_ids": IDS[rows], "labels": LABELS[rows]}
        (lm_loss(wrapped, batch, 1.5, num_items_in_batch=COUNT) * world.size).backward()
        if world.main:
            torch.save(plain({name: x.grad for name, x in model.named_parameters()}), request["out"])
    exit_process(0)


if __name__ == "__main__":
    main()
