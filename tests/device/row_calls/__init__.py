"""A call of each row of the device API's table, with checks of its effect."""

from collections.abc import Callable
from typing import Any

from onnxruntime_npu import _C, npu

CALLS: dict[str, Callable[[Any, str], None]] = {}


def calls(*names):
    """Registers a function as the call of these rows; it receives the row's name."""

    def register(function):
        for name in names:
            assert name not in CALLS, name
            CALLS[name] = function
        return function

    return register


class Context:
    """Resources of a call: a temporary folder, memory, and torch on demand."""

    def __init__(self, folder, request, run_python):
        self.folder = folder
        self.run_python = run_python
        self._request = request
        self._blocks = []

    @property
    def torch(self):
        self._request.getfixturevalue("torch_npu")
        import torch

        return torch

    @property
    def utils(self):
        return self._request.getfixturevalue("torch_npu").utils

    def hold_memory_still(self):
        self._request.getfixturevalue("still_memory")

    def block(self, size=4096):
        self._blocks.append(npu.caching_allocator_alloc(size))
        return self._blocks[-1]

    def close(self):
        npu.synchronize()
        for address in self._blocks:
            if _C.block_size(0, address):
                npu.caching_allocator_delete(address)
