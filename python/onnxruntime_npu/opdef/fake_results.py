"""Types of an operator's results under torch's FakeTensorMode, computed once for equal calls.

A reference on fake tensors takes 20 ms, and a trace meets the same call in every layer of a model,
several times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch

# Only traces need them, which have loaded them: torch does not, when it is imported.
if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

# An attribute of the mode, so that sizes end with it: they keep its symbols, which keep it.
_ATTRIBUTE = "_onnxruntime_npu_results"
_PLAIN = (int, float, bool, str, complex, type(None), torch.dtype, torch.device)


def fake_results(
    op: Hashable, bound: Mapping[str, Any], compute: Callable[[], tuple[Any, ...]]
) -> list[torch.Tensor]:
    """Return dense tensors of the types that ``compute()`` gives for a call of ``op``.

    The types of an equal call in the same mode are taken from that. A size that only the data
    decides is another one in each call: such types are not kept.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    mode = _mode_of(bound)
    key = None if mode is None else _key(bound)
    if key is None:
        return [
            torch.empty_like(value, memory_format=torch.contiguous_format) for value in compute()
        ]
    known = mode.__dict__.setdefault(_ATTRIBUTE, {})
    types = known.get((op, key))
    if types is None:
        results = compute()
        types = [(tuple(value.shape), value.dtype, value.device) for value in results]
        if not any(free_unbacked_symbols(value) for value in results):
            known[(op, key)] = types
    return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in types]


def _mode_of(bound: Mapping[str, Any]) -> FakeTensorMode | None:
    from torch._subclasses.fake_tensor import FakeTensor

    for value in bound.values():
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, FakeTensor):
                return item.fake_mode
    return None


def _key(value: Any) -> Hashable | None:
    """Return what the types of results depend on; None if that cannot be compared."""
    if isinstance(value, torch.Tensor):
        if getattr(value, "constant", None) is not None:  # a reference may read it
            return None
        return ("tensor", value.dtype, value.device, _key(tuple(value.shape)))
    if isinstance(value, torch.SymInt):
        return ("symbol", value.node.expr)
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, (list, tuple)):
        keys = tuple(_key(item) for item in value)
        return None if None in keys else (len(keys), *keys)
    return None
