"""Define buffers that are not in the state dict and keep their values when a module gets new memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tsallis.ops.transforms import without_numbers


class ConstantBuffers(nn.Module):
    """Module with constant tensors, which move with the module but are not in its state dict.

    Loading a state dict can't restore the constants. They are therefore copied from the originals whenever the module
    gets new memory (`to_empty`, `to`), and when weights are assigned to a module on the device "meta".
    """

    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[str, Tensor] = {}
        self.register_load_state_dict_post_hook(materialise_constants)

    def register_constant(self, name: str, value: Tensor | None, device: Any = None) -> None:
        """Register a buffer outside the state dict.

        Args:
            name: Name of the buffer.
            value: Tensor with data, or None.
            device: Device of the buffer; None: the device of `value`.

        Raises:
            ValueError: The tensor is on the device "meta", so it has no data.
        """
        if value is not None and value.is_meta:
            raise ValueError(
                f"{name} must not be on the device 'meta', which stores no numbers: create it with device='cpu'"
            )
        if value is not None:
            self._constants[name] = value
        self.register_buffer(name, value if value is None or device is None else value.to(device), persistent=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and name in self.__dict__.get("_constants", ()):
            old = self._buffers.get(name)
            if old is not None and old.is_meta and not value.is_meta:  # a loader gives new memory, without numbers
                value = self._constants[name].to(value.device, value.dtype)
            elif not without_numbers(value):
                self._constants[name] = value
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ConstantBuffers:
        old_buffers = {name: self._buffers[name] for name in self._constants if name in self._buffers}
        super()._apply(fn, recurse)
        for name, old in old_buffers.items():
            new, constant = self._buffers[name], self._constants[name]
            if old is None or new is None or new is old or new.is_meta:
                continue
            # A buffer that was changed in place keeps the new numbers.
            if without_numbers(old) or torch.equal(old, constant.to(old.device, old.dtype)):
                self._buffers[name] = constant.to(new.device, new.dtype)
        return self


def materialise_constants(module: ConstantBuffers, _: Any) -> None:
    """Copy constants from the device "meta" to the device of the loaded weights."""
    devices = {x.device for x in module.parameters() if not x.is_meta}
    for name, value in module._constants.items():
        buffer = module._buffers[name]
        if buffer is not None and buffer.is_meta and devices:
            module._buffers[name] = value.to(next(iter(devices)), buffer.dtype)
