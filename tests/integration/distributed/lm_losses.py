"""Run by two processes: compute a language model's loss without its logits, each process on its own rows."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from integration.distributed.parts import arguments, plain
from tiny_transformers import build
from tsallis.huggingface import alphas, lm_loss, sparsify
from tsallis.toolkit.training.distributed import exit_process, init_distributed

IDS = torch.arange(5, 33).reshape(4, 7)
LABELS = IDS.masked_fill(torch.arange(7) < torch.tensor([[0], [2], [5], [3]]), -100)
COUNT = int((LABELS[:, 1:] != -100).sum())


KINDS = ("whole", *(["adapter"] if importlib.util.find_spec("peft") else []))


def build_model(kind: str) -> Any:
    model = build("llama")
    if kind == "whole":
        return model
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: x.grad for name, x in model.named_parameters() if x.requires_grad}


def check_sharded(batch: dict[str, Any]) -> None:
    """Check that alphas are whole, and that an output layer which is sharded by itself is named."""
    model = sparsify(build("llama"), "learned")
    before = alphas(model)
    fully_shard(model.lm_head)
    fully_shard(model)
    model(batch["input_ids"])
    torch.testing.assert_close(alphas(model), before)
    with pytest.raises(ValueError, match="reshard_after_forward=False"):
        lm_loss(model, batch, 1.5)


def main() -> None:
    request = arguments()
    torch.set_num_threads(1)
    with init_distributed("cpu") as world:
        rows = slice(2 * world.rank, 2 * world.rank + 2)
        batch = {"input_ids": IDS[rows], "labels": LABELS[rows]}
        results = {}
        for kind in KINDS:
            model = build_model(kind)
            # The Trainer of Transformers wraps models in the same way.
            wrapped = DistributedDataParallel(model, find_unused_parameters=True)
            (lm_loss(wrapped, batch, 1.5, num_items_in_batch=COUNT) * world.size).backward()
            results[kind] = gradients(model)
        check_sharded(batch)
        if world.main:
            torch.save(plain(results), request["out"])
    exit_process(0)


if __name__ == "__main__":
    main()
