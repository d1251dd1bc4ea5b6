"""What the runs of a session with ``enable_npu_graph`` have bound, told to the provider.

A replay reads and writes the addresses of its capture. onnxruntime tells a provider the number of
the graph only: with values bound elsewhere it would return what their memory held before. So
bindings of such sessions note what they bind, and each run tells the provider, which compares it
with what was bound at the capture (``ep/provider/bound_values.h``).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from onnxruntime import InferenceSession, IOBinding
from onnxruntime.capi import onnxruntime_pybind11_state as C

from .provider_library import get_ep_name, set_bound_values

_OPTION = "enable_npu_graph"
# Values that no later call binds again: copies that onnxruntime makes, and memory that a run takes.
_numbers = itertools.count(1)


class _NotedBinding(C.SessionIOBinding):
    """A binding that notes the memory and the form of each value."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, str] = {}

    def bind_input(self, name: str, *value: Any) -> None:
        super().bind_input(name, *value)
        self._inputs[name] = _raw(*value) if len(value) == 4 else _copy()

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        super().bind_ortvalue_input(name, value)
        self._inputs[name] = _of(value)

    def bind_output(self, name: str, *value: Any) -> None:
        super().bind_output(name, *value)
        allocated = f"memory that its run allocates (binding {next(_numbers)})"
        self._outputs[name] = _raw(*value) if len(value) == 4 else allocated

    def bind_ortvalue_output(self, name: str, value: Any) -> None:
        super().bind_ortvalue_output(name, value)
        self._outputs[name] = _of(value)

    def clear_binding_inputs(self) -> None:
        super().clear_binding_inputs()
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        super().clear_binding_outputs()
        self._outputs.clear()

    def described(self) -> str:
        """Return a line for each value, as the provider reads it."""
        return "".join(
            f"{kind}\t{json.dumps(name)[1:-1]}\t{value}\n"
            for kind, values in (("input", self._inputs), ("output", self._outputs))
            for name, value in values.items()
        )


def _copy() -> str:
    return f"a copy of a value in host memory (copy {next(_numbers)})"


def _raw(device: Any, element_type: Any, shape: Any, address: int) -> str:
    return _described(device.device_type(), address, element_type, shape)


def _of(value: Any) -> str:
    if not value.is_tensor():
        return _copy()
    device = C.OrtDevice.cpu() if value.device_name() == "cpu" else C.OrtDevice.npu()
    return _described(device, value.data_ptr(), value.element_type(), value.shape())


def _described(device: int, address: int, element_type: Any, shape: Any) -> str:
    if device == C.OrtDevice.cpu():
        return _copy()
    kind = element_type if isinstance(element_type, int) else _number(element_type)
    return f"address {address:#x} (shape {list(shape)}, element type {kind})"


def _number(element_type: Any) -> Any:
    import numpy as np

    from ..opdef.dtypes import NUMBERS

    name = np.dtype(element_type).name
    return NUMBERS.get(name, name)


def install() -> None:
    """Wrap onnxruntime's bindings and runs, once, after which sessions may be created."""
    make_binding = IOBinding.__init__

    @functools.wraps(make_binding)
    def init(self: IOBinding, session: Any) -> None:
        make_binding(self, session)
        if has_graphs(session):
            self._iobinding = _NotedBinding(session._sess)

    run_bound = InferenceSession.run_with_iobinding

    @functools.wraps(run_bound)
    def run_with_iobinding(
        self: InferenceSession, iobinding: IOBinding, run_options: Any = None
    ) -> None:
        binding = iobinding._iobinding
        if not isinstance(binding, _NotedBinding):
            run_bound(self, iobinding, run_options)
            return
        with _told(binding.described()):
            run_bound(self, iobinding, run_options)

    IOBinding.__init__ = init  # type: ignore[method-assign]
    InferenceSession.run_with_iobinding = run_with_iobinding  # type: ignore[method-assign]
    for name in ("run", "run_with_ort_values", "run_with_ortvaluevector"):
        setattr(InferenceSession, name, _unbound(getattr(InferenceSession, name)))


def has_graphs(session: Any) -> bool:
    """Return whether runs of a session are captured and replayed."""
    return session.get_provider_options().get(get_ep_name(), {}).get(_OPTION) == "1"


def _unbound(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a run whose values nobody has bound: no graph was captured with them."""

    @functools.wraps(run)
    def call(self: InferenceSession, *args: Any, **kwargs: Any) -> Any:
        if not has_graphs(self):
            return run(self, *args, **kwargs)
        with _told("".join(f"input\t{i.name}\t{_copy()}\n" for i in self.get_inputs())):
            return run(self, *args, **kwargs)

    return call


@contextlib.contextmanager
def _told(values: str) -> Iterator[None]:
    set_bound_values(values)
    try:
        yield
    finally:
        set_bound_values("")
