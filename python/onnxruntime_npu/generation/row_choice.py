"""Rows of caches, copied on the device that the caches are on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from ..session.provider_library import get_ep_name

# ONNX element types of caches by their names in sessions (numpy has no bfloat16).
ELEMENT_TYPES = {
    "tensor(float)": 1, "tensor(int8)": 3, "tensor(float16)": 10, "tensor(bfloat16)": 16,
}  # fmt: skip
_OPSET = 18


class RowChoice:
    """Makes caches whose row b is row ``rows[b]`` of others: beams continue chosen ones."""

    def __init__(
        self, types: Sequence[str], device: tuple[str, int], providers: Sequence[Any]
    ) -> None:
        """Serve caches of one model.

        Args:
            types: of their elements, as a session names them.
            device: where they are, as ``bind_output`` takes it.
            providers: of the model's session.
        """
        self._types = types
        self._device = device
        # Captured graphs and the like are for the model.
        names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
        self._providers = [
            (name, {"device_id": str(device[1])} if name == get_ep_name() else {}) for name in names
        ]

    def __call__(self, caches: Sequence[ort.OrtValue], rows: np.ndarray) -> list[ort.OrtValue]:
        """Return the chosen rows, int64 [B], of each cache; new values on their device."""
        binding = self._session.io_binding()
        binding.bind_cpu_input("rows", np.ascontiguousarray(rows, np.int64))
        for number, cache in enumerate(caches):
            binding.bind_ortvalue_input(f"cache{number}", cache)
            binding.bind_output(f"chosen{number}", *self._device)
        self._session.run_with_iobinding(binding)
        return list(binding.get_outputs())

    @functools.cached_property
    def _session(self) -> ort.InferenceSession:
        from onnx import TensorProto, helper

        elements = [ELEMENT_TYPES[name] for name in self._types]
        value = helper.make_tensor_value_info
        nodes = [
            helper.make_node("Gather", [f"cache{n}", "rows"], [f"chosen{n}"], axis=0)
            for n in range(len(elements))
        ]
        caches = [value(f"cache{n}", each, None) for n, each in enumerate(elements)]
        chosen = [value(f"chosen{n}", each, None) for n, each in enumerate(elements)]
        rows = value("rows", TensorProto.INT64, ["batch"])
        graph = helper.make_graph(nodes, "rows", [rows, *caches], chosen)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        return ort.InferenceSession(model.SerializeToString(), options, providers=self._providers)
