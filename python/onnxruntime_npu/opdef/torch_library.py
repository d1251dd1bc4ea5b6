"""Registers the operators with torch: ``torch.ops.npu.*`` for CPU and npu tensors and for tracing.

The schemas are torch_npu's. On both devices an operator runs its kernel: on the CPU through Python
(eager.py), on npu in the extension (call_plan.py). Its fake (meta) function is the reference, used
only for shapes and dtypes; gradients are in autograd.py.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.functional_tensor import CppFunctionalizeAPI

from .autograd import AutogradKernel
from .call_plan import call_plan
from .composition import Composition
from .definition import Op
from .discovery import all_compositions, all_ops
from .dtensor import DTensorCall, has_dtensors
from .dtensor_divisions import DIVISIONS
from .eager import EagerKernels, check_dtypes
from .fake_results import fake_results
from .overloads import composites
from .schema import Argument, Schema, Type

NAMESPACE = "npu"

_lock = threading.Lock()
_library: torch.library.Library | None = None
_stepped_aside = False


def dispatcher_schema(schema: Schema) -> Schema:
    """Return the schema as torch_npu registers it, which names ``self`` ``input``."""
    return schema.renamed({"self": "input"})


def register() -> bool:
    """Define ``torch.ops.npu.*``, once. False when the real torch_npu owns the namespace."""
    global _library, _stepped_aside
    with _lock:
        if _library is not None or _stepped_aside:
            return not _stepped_aside
        if _real_torch_npu_is_loaded():
            _stepped_aside = True
            warnings.warn(
                "torch_npu is loaded and owns torch.ops.npu and the device 'npu': onnxruntime_npu "
                "leaves both to it. Import onnxruntime_npu without torch_npu to use the host NPU.",
                stacklevel=2,
            )
            return False
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        for op in all_ops().values():
            register_op(library, op)
        for composition in all_compositions().values():
            register_composites(library, composition)
        _library = library
        return True


def register_on_npu(register_kernel: Callable[[str, dict[str, Any]], None]) -> None:
    """Let the extension's kernel run the operators on npu tensors.

    ``register_kernel(name, plan)`` registers the kernel of one torch name by its plan.
    """
    if not register():
        return
    for op in all_ops().values():
        for schema in op_schemas(op):
            register_kernel(
                _qualified(schema), call_plan(op, schema, _in_place_outputs(op, schema))
            )


def op_schemas(op: Op) -> tuple[Schema, ...]:
    """Return the schemas of all torch names of an operator."""
    functional = functional_schema(op)
    return (*op.torch_schemas(), *((functional,) if functional else ()))


def _qualified(schema: Schema) -> str:
    return f"{schema.name}.{schema.overload}" if schema.overload else schema.name


def register_op(library: torch.library.Library, op: Op) -> None:
    """Define one operator, its other names, overloads and partners in ``library``.

    An operator that writes to arguments gets an overload ``functional`` that returns their new
    values instead, which is what tracing sees.
    """
    kernels = EagerKernels(op)
    for schema in op_schemas(op):
        _define(library, op, schema, kernels)
    register_composites(library, op)
    packet = getattr(getattr(torch.ops, NAMESPACE), op.name)
    if op.inplace:
        _make_functionalizable(library, op, op.inplace, packet.default)
    if op.mutable_alias:
        _make_functionalizable(library, op, op.schema, packet.functional)


def register_composites(library: torch.library.Library, op: Op | Composition) -> None:
    """Define the names whose functions torch decomposes into other operators."""
    for schema, function in composites(op):
        library.define(str(dispatcher_schema(schema)))
        if schema.name in DIVISIONS:  # before torch divides the operators that it consists of
            function = _Divided(DTensorCall(op, schema, function), function)
        library.impl(_qualified(schema), function, "CompositeImplicitAutograd")


@dataclass
class _Divided:
    """A function of which ranks compute parts if it is called with DTensors."""

    on_dtensors: DTensorCall
    function: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        chosen = self.on_dtensors if has_dtensors(args, kwargs) else self.function
        return chosen(*args, **kwargs)


def functional_schema(op: Op) -> Schema | None:
    """Return the functional overload of an operator that writes to arguments, otherwise None."""
    if not op.mutable_alias:
        return None
    arguments = (replace(a, type=replace(a.type, alias="")) for a in op.schema.arguments)
    returns = (Argument("", Type("Tensor", is_list=o.variadic)) for o in op.outputs)
    return Schema(op.name, "functional", tuple(arguments), tuple(returns))


def _real_torch_npu_is_loaded() -> bool:
    module = sys.modules.get("torch_npu")
    return module is not None and module.__name__ == "torch_npu"


class _Call:
    """One torch name of an operator: binds arguments, runs on the CPU, and shapes the results."""

    def __init__(self, op: Op, schema: Schema, kernels: EagerKernels):
        self._op = op
        self._kernels = kernels
        self._names = [a.name for a in schema.arguments if not a.keyword_only]
        self._defaults = {a.name: a.default for a in schema.arguments if not a.required}
        if op.seeded:
            self._defaults["seed"] = 0
        self._in_place = _in_place_outputs(op, schema)
        self._result_count = len(schema.returns)
        self._has_list_result = any(r.type.is_list for r in schema.returns)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        bound, integers = self._op.settle(self._bind(args, kwargs))
        if self._op.seeded and not bound["seed"]:
            bound["seed"] = self._op.draw_seed(bound)
        check_dtypes(self._op, bound)
        count = self._op.count_outputs(bound)
        return self._results(self._kernels.run(bound, self._in_place, count), integers)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        bound, integers = self._op.settle(self._bind(args, kwargs))
        check_dtypes(self._op, bound)
        outputs = fake_results(self._op.name, bound, lambda: self._op.node_results(bound))
        for i, name in self._in_place.items():
            outputs[i] = bound[name]
        return self._results(outputs, integers)

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # The dispatcher has checked the call; it omits trailing defaults.
        return {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}

    def _results(self, outputs: list[torch.Tensor], integers: tuple[int, ...]) -> Any:
        if self._has_list_result:
            head = self._result_count - 1
            results: tuple[Any, ...] = (*outputs[:head], list(outputs[head:]))
        else:
            results = (*outputs[: self._result_count - len(integers)], *integers)
        if self._result_count == 1:
            return results[0]
        return results if results else None


def _in_place_outputs(op: Op, schema: Schema) -> dict[int, str]:
    """Return which node outputs are written over which arguments when called as ``schema``."""
    if schema.overload == "functional":
        return {}
    if schema is not op.inplace:
        return {i: o.mutates for i, o in enumerate(op.outputs) if o.mutates}
    written = {a.type.alias: a.name for a in schema.arguments if a.type.mutated}
    returned = [r.type.alias for r in schema.returns]
    order = [a for a in returned if a in written] or list(written)
    return {i: written[alias] for i, alias in enumerate(order)}


def _define(library: torch.library.Library, op: Op, schema: Schema, kernels: EagerKernels) -> None:
    call = _Call(op, schema, kernels)
    name = _qualified(schema)
    tags = (torch.Tag.nondeterministic_seeded,) if op.seeded else ()
    library.define(str(dispatcher_schema(schema)), tags=tags)
    library.impl(name, call.run, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", call.fake, lib=library)
    packet = getattr(getattr(torch.ops, NAMESPACE), schema.name)
    overload = getattr(packet, schema.overload or "default")
    autograd = AutogradKernel(op, schema, overload, call.run, _in_place_outputs(op, schema))
    library.impl(name, autograd, "Autograd", with_keyset=True)


def _make_functionalizable(
    library: torch.library.Library, op: Op, schema: Schema, functional: Callable[..., Any]
) -> None:
    """Let tracing replace a call that writes to arguments by a functional one and copies."""
    overload = getattr(getattr(torch.ops, NAMESPACE), schema.name).default
    written = _in_place_outputs(op, schema)
    position = {a.name: i for i, a in enumerate(schema.arguments)}
    result_count = len(schema.returns)

    @overload.py_functionalize_impl
    def functionalize(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        plain_args, plain_kwargs = ctx.unwrap_tensors((args, kwargs))
        with ctx.redispatch_to_next():
            values = functional(*plain_args, **plain_kwargs)
        results = [
            ctx.wrap_tensors(v) for v in (values if isinstance(values, tuple) else (values,))
        ]
        for i, name in written.items():
            target = kwargs[name] if name in kwargs else args[position[name]]
            ctx.replace(target, ctx.unwrap_tensors(results[i]))
            ctx.commit_update(target)
            ctx.sync(target)
            results[i] = target
        if result_count == 1:
            return results[0]
        return tuple(results[:result_count]) if result_count else None

    # The same for functionalization without the Python dispatcher.
    cpp = CppFunctionalizeAPI()
    library.impl(schema.name, functools.partial(functionalize, cpp), "Functionalize")
