"""Define entmax losses for Transformers' Trainer, and for language models without storing logits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from tsallis.functional import SparseRows, entmax_loss, linear_entmax_loss
from tsallis.functional.losses import check_smoothing
from tsallis.functional.rows import alpha_number
from tsallis.huggingface.alphas import COMPILED
from tsallis.huggingface.offloading import loaded
from tsallis.huggingface.text_batches import add_decoder_inputs
from tsallis.ops.tracing import untraced

# Settings that change logits after the projection, and their neutral values.
SCALINGS = {"final_logit_softcapping": None, "logits_scaling": 1.0, "logit_scale": 1.0, "mup_width_multiplier": None}
# Names of Transformers' losses that shift labels. None, as in GPT2LMHeadModel, means the first name.
CAUSAL = ("ForCausalLM", "ForConditionalGeneration", None)
NOT_CAUSAL = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
FIRST_LABEL = -101  # label of the first row of a teacher; the others descend from it, so no class is mistaken for a row


def trainer_loss(
    alpha: float = 1.5, *, shift: bool = False, label_smoothing: float = 0.0, teacher: SparseRows | None = None
) -> Callable[..., Tensor]:
    r"""Return an entmax loss for the argument `compute_loss_func` of `Trainer`.

    .. math:: L(z, y) = \max_p \big(p^\top z + H_\alpha(p)\big) - z_y

    (Peters et al. 2019, eq. 11). The result is the mean over all labels except -100. For predictions, use
    :func:`tsallis.entmax` with the same alpha. Trainer removes the labels before it calls the model, so batches of an
    encoder-decoder need `decoder_input_ids`: use `DataCollatorForSeq2Seq(tokenizer, model=model)`. The router loss of
    mixtures of experts is not added; :func:`lm_loss` adds it. With a loss function, Trainer ignores
    `label_smoothing_factor`: pass `label_smoothing` here. Labels are classes, or rows of probabilities that sum to 1.

    Args:
        alpha: Alpha, at least 1; 1 is cross-entropy.
        shift: Compare the logits of a position with the next label, as causal language models require.
        label_smoothing: See :func:`tsallis.entmax_loss`.
        teacher: Distributions of a :class:`DistilledDataset`, whose batches have row numbers as labels.

    Returns:
        Function of the model's outputs, the labels, and the number of labels in all micro-batches of a step.

    Raises:
        ValueError: An argument is out of range, or `label_smoothing` is combined with `teacher`. The function raises
            it if there are no labels or no logits, or not one label per position of the logits.

    Example:
        >>> import torch
        >>> loss = trainer_loss(1.5)
        >>> loss({"logits": torch.tensor([[2.0, 1.0, 0.1]])}, torch.tensor([0]))
        tensor(0.0617)
    """
    alpha, label_smoothing = alpha_number(alpha), check_smoothing(label_smoothing)
    if teacher is not None and label_smoothing:
        raise ValueError(f"label_smoothing must be 0 with a teacher, got {label_smoothing:g}")

    def compute(outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        if labels is None:
            raise ValueError("batches must have labels, got none")
        if isinstance(outputs, Mapping) and "logits" not in outputs:
            raise ValueError(f"the model must return logits, got {', '.join(outputs)}")
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]  # return_dict=False: a tuple
        if labels.shape not in (logits.shape[:-1], logits.shape):
            raise ValueError(
                f"labels must have shape {list(logits.shape[:-1])}, one per position of the logits, got "
                f"{list(labels.shape)}; with prompt tuning (PEFT), use lm_loss"
            )
        if shift:
            labels = labels[..., 1:, :] if labels.dim() == logits.dim() else labels[..., 1:]
            logits = logits[..., :-1, :]
        target, reduction = _target(labels.to(logits.device), teacher), "mean" if num_items_in_batch is None else "sum"
        with _float32_results(logits):
            value = entmax_loss(logits, target, alpha, reduction=reduction, label_smoothing=label_smoothing)
        return value / _divisor(num_items_in_batch, value)

    return compute


def _divisor(count: Any, like: Tensor) -> Any:
    """Return the divisor of a loss, on its device: a count of labels, or 1 if the loss is a mean."""
    return count.to(like.device) if isinstance(count, Tensor) else 1 if count is None else count


def _float32_results(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which losses of half-precision models have float32, as those of Transformers."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    return torch.autocast(x.device.type, x.dtype) if half else nullcontext()


def _target(labels: Tensor, teacher: SparseRows | None) -> Tensor | SparseRows:
    """Return the target of each label; labels of evaluation data are classes, also for a student."""
    if teacher is None or not (labels <= FIRST_LABEL).any():
        return labels
    return teacher[(FIRST_LABEL - labels).flatten().to(teacher.offsets.device)]


def lm_loss(
    model: Any,
    inputs: Mapping[str, Any],
    alpha: float = 1.5,
    *,
    shift: bool | None = None,
    num_items_in_batch: Tensor | int | None = None,
    teacher: SparseRows | None = None,
) -> Tensor:
    """Compute the entmax loss of a language model without storing its logits.

    :func:`tsallis.linear_entmax_loss` replaces the projection and the loss of the model. With large vocabularies,
    logits take most of the memory of a training. At alpha 1 the result equals the loss that the model returns.

    Args:
        model: Transformers model with a language modelling head, such as `LlamaForCausalLM`, `BertForMaskedLM` or
            `T5ForConditionalGeneration`, also in PEFT or `DistributedDataParallel`.
        inputs: Inputs of the model, with `labels` [batch, length]; -100 is ignored. Decoder inputs may be missing.
        alpha: Alpha, at least 1; 1 is cross-entropy.
        shift: Whether to compare a position with the next label; None: as the model does, True for causal models.
        num_items_in_batch: Divisor of the sum; None: the value in `inputs`, else the number of labels.
        teacher: See :func:`trainer_loss`.

    Returns:
        Loss [], a scalar tensor.

    Raises:
        ValueError: There are no labels, the output layer or the routers' loss of the model is not supported, it is
            unknown whether the model shifts labels, or the numbers of labels and of projected positions differ.
        TypeError: The model is not a Transformers model, or has another wrapper.

    Example:
        >>> import torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> sizes = {"vocab_size": 9, "n_embd": 8, "n_head": 2, "n_layer": 1, "bos_token_id": 1, "eos_token_id": 2}
        >>> model, ids = GPT2LMHeadModel(GPT2Config(**sizes)), torch.tensor([[5, 6, 7, 2]])
        >>> lm_loss(model, {"input_ids": ids, "labels": ids}).shape
        torch.Size([])
    """
    if inputs.get("labels") is None:
        raise ValueError(f"inputs must have labels, got {', '.join(inputs)}")
    outer, lm, head = _language_model(model)
    shift = shifts(lm) if shift is None else shift
    model_inputs = dict(inputs)
    labels, divisor = model_inputs.pop("labels"), model_inputs.pop("num_items_in_batch", None)
    divisor = divisor if num_items_in_batch is None else num_items_in_batch
    add_decoder_inputs(lm, model_inputs, labels)
    prompt = getattr(getattr(outer, "active_peft_config", None), "num_virtual_tokens", None) or 0

    def loss(hidden: Tensor, routers: Tensor | None) -> Tensor:
        with loaded(_whole(head, type(lm).__name__)):
            weight, bias, hidden = head.weight.to(hidden.dtype), head.bias, hidden.to(head.weight.device)
        target = _labels_of_positions(labels, hidden.shape[:-1], prompt, shift, type(lm).__name__).to(hidden.device)
        options: Any = {"bias": bias, "reduction": "mean" if divisor is None else "sum"}
        with _float32_results(hidden):
            total = linear_entmax_loss(hidden, weight, _target(target, teacher), alpha, **options)
        value = total / _divisor(divisor, hidden)
        return value if routers is None else value + _router_factor(lm) * routers.to(value.device)

    return _loss_at_head(outer, lm, head, model_inputs, loss)


def _whole(head: nn.Linear, name: str) -> nn.Linear:
    """Return the output layer; raise if FSDP2 has sharded it again after its forward pass."""
    if hasattr(head.weight, "full_tensor"):
        hint = "call fully_shard on it with reshard_after_forward=False"
        raise ValueError(f"the output layer of {name} is sharded again after its forward pass: {hint}")
    return head


def _router_factor(lm: Any) -> float:
    """Return the factor of the routers' loss.

    Raises:
        ValueError: The model has none of the usual names of this factor.
    """
    for owner in (lm, lm.config.get_text_config()):
        for name in ("router_aux_loss_coef", "aux_loss_coef"):
            if hasattr(owner, name):
                return float(getattr(owner, name))
    raise ValueError(
        f"{type(lm).__name__} has a router loss, but its factor is unknown: pass output_router_logits=False"
    )


def _labels_of_positions(labels: Tensor, shape: torch.Size, prompt: int, shift: bool, name: str) -> Tensor:
    """Return one label per position of a model, or the next one; the positions of PEFT's prompt have none."""
    if shape[1] == labels.shape[1] + prompt:
        labels = nn.functional.pad(labels, (prompt, 0), value=-100)
    elif shape != labels.shape:
        raise ValueError(
            f"labels must have shape {list(shape)}, one label per position of {name}, got {list(labels.shape)}"
        )
    return nn.functional.pad(labels, (0, 1), value=-100)[..., 1:] if shift else labels


def _language_model(model: Any) -> tuple[Any, Any, nn.Linear]:
    """Return a model without its compiler, the Transformers model inside PEFT or DDP, and its head."""
    outer = lm = getattr(model, COMPILED, model)
    lm = lm.module if isinstance(lm, DistributedDataParallel) else lm
    lm = lm.get_base_model() if hasattr(lm, "get_base_model") else lm  # unwrap PEFT
    lm = getattr(lm, COMPILED, lm)
    if not isinstance(lm, PreTrainedModel):
        wrappers = "a Transformers model, also in PEFT or DistributedDataParallel"
        raise TypeError(f"model must be {wrappers}, got {type(lm).__name__}")
    head = lm.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        kind = f"{type(head).__module__}.{type(head).__name__}"
        raise ValueError(
            f"the output layer of {type(lm).__name__} must be a torch.nn.Linear without adapters, got {kind}"
        )
    return outer, lm, head


def shifts(lm: Any) -> bool:
    """Return whether a model compares a position with the next label.

    Raises:
        ValueError: It is unknown whether the model does this.
    """
    if lm.config.is_encoder_decoder or lm.loss_type in NOT_CAUSAL:
        return False
    methods = [inspect.unwrap(vars(cls)["forward"]) for cls in type(lm).__mro__ if "forward" in vars(cls)]
    names = {name for method in methods for name in getattr(getattr(method, "__code__", None), "co_names", ())}
    if "loss_function" in names and lm.loss_type in CAUSAL:
        return True
    raise ValueError(f"can't determine whether {type(lm).__name__} shifts labels: pass shift=True or shift=False")


@untraced  # compiled code does not notice temporary hooks
def _loss_at_head(
    outer: Any, lm: Any, head: nn.Linear, inputs: dict[str, Any], loss: Callable[[Tensor, Tensor | None], Tensor]
) -> Tensor:
    """Run a model with its wrappers and return a loss of the head's input [batch, length, size] and the routers' loss.

    During the run, the head returns made-up logits for the first position. If the model returns these logits unchanged,
    it does nothing after the projection. The loss replaces the output of the model, because DistributedDataParallel
    looks for unused parameters in the graph of the output.

    Raises:
        ValueError: The model changes the logits, does not call the head exactly once, or its routers' loss is unknown.
    """
    if lm.config.is_encoder_decoder and inputs.get("output_router_logits"):
        raise ValueError(f"output_router_logits must be False for {type(lm).__name__}: only the model adds its loss")
    states: list[Tensor] = []
    probes: list[Tensor] = []
    forward = lm.forward

    def shorten(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        states.append(args[0])
        return (args[0][:, :1], *args[1:])

    def replace(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        probe = torch.linspace(-100, 100, output.shape[-1], device=output.device).to(output.dtype)
        probes.append(probe)
        return probe.expand(output.shape).clone()

    @functools.wraps(forward)
    def forward_to_loss(*args: Any, **options: Any) -> Tensor:
        outputs = forward(*args, **options)
        if len(states) != 1:
            calls = f"{type(lm).__name__} calls its output layer {len(states)} times per pass"
            raise ValueError(f"{calls}, but must call it exactly once")
        logits = outputs.logits if hasattr(outputs, "logits") else outputs[0]
        if logits.shape[-1:] != probes[0].shape or not (logits == probes[0]).all():
            config = lm.config.get_text_config()
            settings = {name: getattr(config, name, neutral) for name, neutral in SCALINGS.items()}
            reasons = [f"{name} = {x}" for name, x in settings.items() if x not in (None, SCALINGS[name])]
            how = f"by {', '.join(reasons)}" if reasons else "after the projection"
            raise ValueError(f"{type(lm).__name__} changes its logits {how}, which is not supported")
        return loss(states[0], getattr(outputs, "aux_loss", None))

    hooks = [head.register_forward_pre_hook(shorten), head.register_forward_hook(replace)]
    instance_forward = vars(lm).get("forward")  # for example by accelerate
    lm.forward = forward_to_loss  # not a hook: PEFT calls `forward` itself
    is_compiled = getattr(outer, "_compiled_call_impl", None) is not None
    try:
        result: Tensor = outer.forward(**inputs) if is_compiled else outer(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
        if instance_forward is None:
            del lm.forward
        else:
            lm.forward = instance_forward
    return result
