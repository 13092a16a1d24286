"""Types of options that several examples share, for `argparse`."""

from __future__ import annotations

import argparse


def number_or_name(text: str) -> str | float:
    """Return the number that a text contains, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def positive_int(text: str) -> int:
    """Return a whole number of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def usable_device(text: str) -> str:
    """Return the name of a device on which PyTorch can create tensors."""
    import torch  # only here: the other types need no PyTorch

    try:
        torch.zeros(1, device=text).item()
    except (AssertionError, RuntimeError) as error:
        raise argparse.ArgumentTypeError(f"cannot use {text!r}: {str(error).splitlines()[0]}") from error
    return text
