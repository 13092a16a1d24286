"""The attention functions of the stand-in backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stand_in import watch
from tsallis.ops.arguments import AttentionArgs, AttentionGradients
from tsallis.ops.dtypes import upcast
from tsallis.ops.eager import attention as eager

SavedForBackward = eager.SavedForBackward
drop_factors = eager.drop_factors


def _wide(args: AttentionArgs) -> AttentionArgs:
    query, key, value = (upcast(x) for x in args[:3])
    mask = args.mask if args.mask is None or args.mask.dtype == torch.bool else upcast(args.mask)
    return args._replace(query=query, key=key, value=value, mask=mask)


def _attention(args: AttentionArgs, needs_grad: bool) -> Any:
    output, support, saved = eager.attention(_wide(args), needs_grad)
    return output.to(args.query.dtype), support, saved


def _attention_gradient(args: AttentionArgs, saved: Any, grad: Tensor, needs: Any) -> AttentionGradients:
    gradients = eager.attention_gradient(_wide(args), saved, upcast(grad), needs)
    pairs = zip(gradients, args.differentiable, strict=True)
    return AttentionGradients(*(None if g is None or x is None else g.to(x.dtype) for g, x in pairs))


attention = watch(_attention, "attention")
attention_gradient = watch(_attention_gradient, "attention_gradient")


def resolve(args: AttentionArgs) -> AttentionArgs:
    return args


def allocate(args: AttentionArgs, output: Tensor, support: Tensor, needs_grad: bool) -> Any:
    return SavedForBackward()
