"""Update steps of a model, with several processes, gradient accumulation and mixed precision.

An update sums the loss over the target symbols of all batches and processes, and divides the sum by the number of these
symbols. The gradient therefore does not depend on the distribution of rows over batches and processes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from tsallis.errors import InputError
from tsallis.functional import SparseRows
from tsallis.models.arguments import untrained_copy
from tsallis.models.batch import Batch, has_loss
from tsallis.models.sharing import aliases_of
from tsallis.nn.parameter_groups import parameter_groups
from tsallis.symbols import IGNORE_INDEX
from tsallis.toolkit.config import Settings
from tsallis.toolkit.evaluation.teacher_forcing import counted_symbols
from tsallis.toolkit.training.distributed import World

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


class BatchStats(NamedTuple):
    """Accuracy and sparsity of a model on one batch, summed over its symbols."""

    accuracy: Tensor  # number of target symbols that are predicted correctly
    supported: Tensor  # number of symbols with a non-zero probability
    num_attended: Tensor  # number of positions with a non-zero attention weight
    symbols: Tensor  # number of target symbols


class Objective(nn.Module):
    """Module whose `forward` computes the loss of a model, so that DDP and FSDP see every parameter of the loss."""

    def __init__(self, model: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.collect_stats = False
        self.batch_stats: BatchStats | None = None

    def forward(
        self, src: Tensor, src_lengths: Tensor, tgt_in: Tensor, tgt_out: Tensor, soft: SparseRows | None = None
    ) -> Tensor:
        """Return the sum of the loss over all target symbols that are not ignored, or of their distributions."""
        model: Any = self.model
        tgt_out = torch.where(has_loss(tgt_out), tgt_out, IGNORE_INDEX)
        decoded = model(src, src_lengths, tgt_in)
        if self.collect_stats:
            self.batch_stats = batch_stats(model, decoded, tgt_out)
        if soft is not None:
            return model.output.loss(decoded.hidden, soft, reduction="sum")
        return model.output.loss(decoded.hidden, tgt_out, reduction="sum", label_smoothing=self.label_smoothing)


@torch.no_grad()
def batch_stats(model: Any, decoded: Any, tgt_out: Tensor) -> BatchStats:
    """Compute accuracy and sparsity with teacher forcing."""
    mask = has_loss(tgt_out) & counted_symbols(model, tgt_out)
    scores = model.output.scores(decoded.hidden[mask]).float()  # [symbols, d_vocab]
    probs = model.output.probs(scores)
    return BatchStats(
        (probs.argmax(-1) == tgt_out[mask]).sum().double(),
        (probs > 0).sum().double(),
        model.num_attended(decoded)[mask].double().sum(),
        mask.sum().double(),
    )


class Engine:
    """Runner of update steps, which also saves and loads the full state of model and optimizer for checkpoints.

    Args:
        model: Model in its initial state, which is the same on every process.
        settings: Settings of the training.
        world: Rank of this process and number of processes.
    """

    def __init__(self, model: nn.Module, settings: Settings, world: World) -> None:
        self.world, self.settings = world, settings
        self.stop = False  # whether any process asked all processes to stop after the last update
        self.model = model.to(world.device)
        self.objective = Objective(self.model, settings.label_smoothing)
        self.sharded = world.size > 1 and settings.strategy == "fsdp"
        self.module: nn.Module = self._wrap()
        self.step_module = torch.compile(self.module, dynamic=True) if settings.compile else self.module
        fused = world.device.type in ("cpu", "cuda")
        scale, decay = settings.alpha_lr_scale, settings.weight_decay
        groups = parameter_groups(self.model, 1.0, alpha_lr_scale=scale, weight_decay=decay)
        groups = [{**group, "factor": group["lr"]} for group in groups]
        self.optimizer = OPTIMIZERS[settings.optimizer](groups, betas=settings.betas, fused=fused)

    def _wrap(self) -> nn.Module:
        if self.world.size == 1:
            return self.objective
        if self.sharded:
            return self._shard()
        ids = [self.world.device.index] if self.world.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(self.objective, device_ids=ids, broadcast_buffers=False)

    def _shard(self) -> nn.Module:
        """Shard the model with FSDP2. Each layer is a group; layers with shared parameters join the root group."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.world.device.type, (self.world.size,))
        layers = [layer for part in self.model.modules() if isinstance(part, nn.ModuleList) for layer in part]
        uses = Counter(p for layer in layers for p in layer.parameters())
        for layer in layers:
            if all(uses[p] == 1 for p in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return cast(nn.Module, fully_shard(self.objective, mesh=mesh))

    def update(
        self,
        batches: Sequence[Batch],
        num_rank_batches: int,
        count: int,
        rate: float,
        collect_stats: bool = False,
        stop: bool = False,
        soft: Sequence[SparseRows] | None = None,
    ) -> tuple[int, Tensor]:
        """Run one step of the optimizer.

        Args:
            batches: Batches of this process, at least one.
            num_rank_batches: Number of batches of this process that contribute to the loss. If it is below `count`, the
                process repeats its first batch with weight 0, because all processes must run the same number of passes.
            count: Number of passes of each process.
            rate: Learning rate.
            collect_stats: Whether to store a :class:`BatchStats` of the first batch in `objective.batch_stats`.
            soft: Distributions of the target symbols of each batch, in place of the symbols.
            stop: Whether this process must stop after the update. If so, :attr:`stop` becomes True in all processes.

        Returns:
            The number of symbols of all processes, and the summed loss of this process, as a tensor on the device. For
            a classifier, only labels count as symbols, because the end symbol after a label is certain.
        """
        targets = [batch.tgt_out for batch in batches[:num_rank_batches]]
        counts = [int((has_loss(target) & counted_symbols(self.model, target)).sum()) for target in targets]
        symbols, stops = self.world.sum(sum(counts), stop)
        self.stop = stops > 0
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for index in range(count):
            contributes = index < num_rank_batches
            self.objective.collect_stats = collect_stats and index == 0
            with self._gradient_sync(last=index == count - 1):
                number = index if contributes else 0
                loss = self._loss(batches[number], None if soft is None else soft[number])
                # DDP and FSDP average gradients over processes. Multiplying by the number of processes undoes this.
                (loss * (self.world.size / max(symbols, 1) if contributes else 0.0)).backward()
            total += loss.detach() if contributes else 0
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        return int(symbols), total

    def _loss(self, batch: Batch, soft: SparseRows | None) -> Tensor:
        device = self.world.device
        fields = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
        moved: list[Any] = [x.to(device, non_blocking=True) for x in fields]
        if soft is not None:
            moved.append(soft.to(device))
        dtype = PRECISIONS[self.settings.precision]
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            # Statistics need recorded attention, which compiled passes do not record.
            loss: Tensor = (self.module if self.objective.collect_stats else self.step_module)(*moved)
        return loss

    @contextlib.contextmanager
    def _gradient_sync(self, last: bool) -> Iterator[None]:
        """Disable the synchronization of gradients between processes, except in the last pass of an update."""
        if self.sharded:
            cast(Any, self.module).set_requires_gradient_sync(last)
        elif self.world.size > 1 and not last:
            with cast(nn.parallel.DistributedDataParallel, self.module).no_sync():
                yield
            return
        yield

    def unsharded_model(self) -> nn.Module:
        """Return a model for search and evaluation in one process; if the model is sharded, return a full copy."""
        if not self.sharded:
            return self.model
        state = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        model = untrained_copy(self.model)
        model.to(self.world.device, next(self.model.parameters()).dtype).load_state_dict(state)
        return model.eval()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters and the state of the optimizer, on the CPU.

        If the model is sharded, only the first process gets the values; the other processes get empty dictionaries. A
        parameter with several names is included once.
        """
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model: Any = get_model_state_dict(self.model, options=options)
        aliases = aliases_of(self.model)
        model = {name: value for name, value in model.items() if name not in aliases}
        return model, dict(get_optimizer_state_dict(self.model, self.optimizer, options=options))

    def load(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> None:
        """Load a result of :meth:`state`. The number of processes may have changed. Call :meth:`check` first."""
        # All processes must use the same order of parameters, because parameters are distributed one after another.
        parameters: dict[str, Any] = {name: model[name] for name in self._names()}
        options = StateDictOptions(full_state_dict=True, strict=False)  # not strict, because aliases are missing
        set_model_state_dict(self.model, parameters, options=options)
        # The parameter groups of the optimizer come from the settings, not from the checkpoint.
        groups = [{**group, "params": names} for group, names in self._groups()]
        set_optimizer_state_dict(
            self.model, self.optimizer, {"state": dict(optimizer["state"]), "param_groups": groups}, options=options
        )

    def check(self, model: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> None:
        """Raise unless a result of :meth:`state` belongs to this model; call this before :meth:`load`.

        Raises:
            InputError: If a parameter is missing or has another shape.
        """
        shapes = {name: value.shape for name, value in self.model.state_dict().items()}
        names = self._names()
        if missing := set(names) - model.keys():
            raise InputError(f"the stored parameters do not contain {', '.join(sorted(missing))}")
        for name in names:
            if model[name].shape != shapes[name]:
                raise InputError(
                    f"the stored {name} must have shape {list(shapes[name])}, got {list(model[name].shape)}"
                )
        state, trained = optimizer["state"], [name for _, names in self._groups() for name in names]
        if state.keys() != set(trained):
            raise InputError("the stored optimizer does not belong to the parameters of this model")
        for name in trained:
            expected = {"exp_avg": shapes[name], "exp_avg_sq": shapes[name], "step": torch.Size()}
            if {kind: getattr(state[name].get(kind), "shape", None) for kind in expected} != expected:
                raise InputError(f"the stored optimizer state of {name} must have shape {list(shapes[name])}")

    def _groups(self) -> list[tuple[dict[str, Any], list[str]]]:
        """Return the parameter groups of the optimizer, each with its parameter names."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        return [(group, [names[parameter] for parameter in group["params"]]) for group in self.optimizer.param_groups]

    def _names(self) -> list[str]:
        """Return the names of the model's parameters, without aliases."""
        aliases = aliases_of(self.model)
        return [name for name in self.model.state_dict() if name not in aliases]
