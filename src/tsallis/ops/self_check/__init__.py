"""The comparison of kernels with PyTorch's operations before their first use on a kind of device.

Kernels for GPUs are right on the devices where they were tested, with the versions of driver, PyTorch and compiler that
were there. On any other, each family of them (maps, losses, alpha-ReLU, an output layer, attention) is compared once
with PyTorch's operations, in the dtype of its first call; what disagrees is left to these operations, with a warning.
Results are remembered in the user's cache folder.

`rows`, `layer` and `attention` compare, `families` lists what stands or falls together, `memory` is the file, `guard`
decides, `evidence` names the devices that need no check.
"""
