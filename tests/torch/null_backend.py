"""What tests that need no values find on the null backend, where nothing is computed."""

import os
from typing import TypeVar

import torch

T = TypeVar("T")


def computed(value: T) -> T:
    """The value; on the null backend zeros of its form, which is what copies to the host give."""
    if os.environ.get("ORT_NPU_BACKEND") != "null":
        return value
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, (list, tuple)):
        return type(value)(computed(v) for v in value)
    return type(value)(0)
