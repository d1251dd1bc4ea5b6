"""Gradients: the Autograd kernel of every ``torch.ops.npu`` operator, for any device.

An operator with an ``@op.backward`` records a node that runs the formula; any other operator
records a node that raises, like torch's own operators without a derivative. A call that needs no
gradient calls the kernel directly, on npu tensors without entering this module
(csrc/torch/autograd_skip.cc); in inference mode torch skips the Autograd key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from .. import torch_bridge
from .definition import Op
from .dtensor import DTensorCall, add_call, has_dtensors
from .schema import Schema

_BELOW_AUTOGRAD = torch._C._after_autograd_keyset
_PYTHON = torch._C.DispatchKey.Python
_CPU, _NPU = torch._C.DispatchKey.CPU, torch._C.DispatchKey.PrivateUse1


class AutogradKernel:
    """The Autograd kernel of one torch name of an operator.

    Args:
        op: the operator.
        schema: the schema of the called name.
        overload: the call below autograd: ``redispatch(keys, *args, **kwargs)``.
        kernel: the kernel on plain CPU tensors.
        in_place: which outputs are written over which arguments.

    """

    def __init__(
        self,
        op: Op,
        schema: Schema,
        overload: Any,
        kernel: Callable[..., Any],
        in_place: Mapping[int, str],
    ):
        self._overload = overload
        self._kernel = kernel
        self._seeded = op.seeded
        self._on_dtensors = DTensorCall(op, schema, overload)
        add_call(overload, self._on_dtensors)
        self._node = make_node(op, schema, in_place)

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a call that the dispatcher passes with its dispatch keys."""
        below = keys & _BELOW_AUTOGRAD
        if keys.has(_PYTHON) and has_dtensors(args, kwargs):
            return self._on_dtensors(*args, **kwargs)
        # Plain tensors, no tracing: the kernel itself is called below autograd.
        reached = below.highestPriorityTypeId()
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, **kwargs):
            # The dispatcher's schema has no seed argument.
            seeds = self._seeded and reached in (_CPU, _NPU)

            def forward(*args: Any, seed: int = 0, **kwargs: Any) -> Any:
                with torch._C._AutoDispatchBelowAutograd():
                    if not seed:
                        return self._overload.redispatch(below, *args, **kwargs)
                    if reached == _CPU:
                        return self._kernel(*args, seed=seed, **kwargs)
                    with torch_bridge.next_call_given(seed=seed):
                        return self._overload.redispatch(below, *args, **kwargs)

            return self._node(forward, args, kwargs, seeds)
        if reached == _CPU:
            return self._kernel(*args, **kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return self._overload.redispatch(below, *args, **kwargs)


@dataclass
class _Call:
    """Data of one recorded call that autograd.Function cannot store."""

    forward: Callable[..., Any]
    bound: dict[str, Any]  # every argument by name
    has_list_result: bool = False


def make_node(op: Op, schema: Schema, in_place: Mapping[int, str]) -> Callable[..., Any]:
    """Return ``node(forward, args, kwargs, seeds)``: it runs ``forward`` and records its gradient.

    With ``seeds`` the node draws the seed for a formula that reads it, and passes it to
    ``forward``. A tensor that is written in place is recorded as in torch's in-place operators; its
    old value is saved only if the formula reads it.
    """
    formula = op.backward_formula
    names = [a.name for a in schema.arguments]
    keyword_only = {a.name for a in schema.arguments if a.keyword_only}
    tensor_names = [a.name for a in schema.arguments if a.type.is_tensor]
    defaults = {a.name: a.default for a in schema.arguments if not a.required}
    written = list(dict.fromkeys(in_place.values()))
    output_names = [o.name for o in op.outputs]
    result_count = len(schema.returns)
    reads_seed = op.seeded and formula is not None and "seed" in formula.saves

    def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[torch.Tensor, ...]:
        bound = call.bound
        before = {}
        if formula:
            before = {n: bound[n].clone() for n in written if n in formula.saves}
        args = [bound[n] for n in names if n not in keyword_only]
        keywords = {n: bound[n] for n in names if n in keyword_only}
        if reads_seed and bound["seed"]:
            keywords["seed"] = bound["seed"]
        results = call.forward(*args, **keywords)
        if result_count == 1:
            results = (results,)
        results = list(results or ())
        call.has_list_result = bool(results) and isinstance(results[-1], (list, tuple))
        if call.has_list_result:
            results[-1:] = results[-1]
        for i, name in in_place.items():
            # A dirty tensor must be an output of the node, even if the operator returns nothing.
            if i < result_count:
                results[i] = bound[name]
        results += [bound[n] for n in written if not any(bound[n] is r for r in results)]
        if written:
            ctx.mark_dirty(*(bound[n] for n in written))
        if formula:
            ctx.mark_non_differentiable(
                *(
                    r
                    for i, r in enumerate(results)
                    if isinstance(r, torch.Tensor)
                    and output_names[min(i, len(output_names) - 1)] not in formula.outputs
                )
            )
            values = {**dict(zip(output_names, results, strict=False)), **bound, **before}
            _save(ctx, {n: values[n] for n in formula.saves})
        ctx.list_lengths = {n: len(bound[n]) for n in tensor_names if isinstance(bound[n], list)}
        ctx.set_materialize_grads(False)
        return tuple(results)

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        if formula is None:
            raise NotImplementedError(f"derivative for npu::{schema.name} is not implemented")
        if not any(g is not None for g in grads):
            return (None,) * len(ctx.needs_input_grad)
        values = _saved(ctx)
        for output in formula.outputs:
            i = output_names.index(output)
            values[f"grad_{output}"] = list(grads[i:]) if op.outputs[i].variadic else grads[i]
        needed = iter(ctx.needs_input_grad[1:])
        needs = frozenset(
            name
            for name in tensor_names
            if any([next(needed) for _ in range(ctx.list_lengths.get(name, 1))])
        )
        if formula.takes_needs:
            values["needs"] = needs
        result = formula.function(**values)
        given = dict(
            zip(
                formula.arguments,
                result if len(formula.arguments) > 1 else (result,),
                strict=True,
            )
        )
        flat: list[Any] = []
        for name in tensor_names:
            gradient = given.get(name) if name in needs else None
            length = ctx.list_lengths.get(name)
            if length is None:
                flat.append(gradient)
            else:
                flat += [None] * length if gradient is None else gradient
        return (None, *flat)

    once = formula and not op.differentiable_twice
    function = _function(schema.name, forward, once_differentiable(backward) if once else backward)

    def node(
        run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], seeds: bool = False
    ) -> Any:
        # The formula needs the arguments set on the host, such as a seed.
        bound, _ = op.settle({**defaults, **dict(zip(names, args, strict=False)), **kwargs})
        if reads_seed:
            bound["seed"] = op.draw_seed(bound) if seeds else 0
        for name in written:
            _check_may_be_written(bound[name])
        tensors: list[Any] = []
        for name in tensor_names:
            value = bound[name]
            tensors += value if isinstance(value, list) else [value]
            if formula and name not in formula.arguments and torch._C._any_requires_grad(value):
                raise RuntimeError(
                    f"[{schema.name}] the derivative for '{name}' is not implemented: expected a "
                    f"tensor that does not require grad; detach() it"
                )
        call = _Call(run, bound)
        outputs = function.apply(call, *tensors)
        if call.has_list_result:
            head = result_count - 1
            results = (*outputs[:head], list(outputs[head:]))
        else:
            results = outputs[:result_count]
        if result_count == 1:
            return results[0]
        return results or None

    return node


def _save(ctx: Any, values: dict[str, Any]) -> None:
    """Save values for the gradient: tensors as autograd wants them, which it checks for changes."""
    leaves, ctx.saved_structure = pytree.tree_flatten(values)
    ctx.saved_constants = [None if isinstance(v, torch.Tensor) else v for v in leaves]
    ctx.saved_is_tensor = [isinstance(v, torch.Tensor) for v in leaves]
    ctx.save_for_backward(*(v for v in leaves if isinstance(v, torch.Tensor)))


def _saved(ctx: Any) -> Any:
    """Return what _save has saved."""
    saved = iter(ctx.saved_tensors)
    leaves = [
        next(saved) if is_tensor else constant
        for is_tensor, constant in zip(ctx.saved_is_tensor, ctx.saved_constants, strict=True)
    ]
    return pytree.tree_unflatten(leaves, ctx.saved_structure)


def _function(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return a subclass of autograd.Function, called as an operator's node is in torch."""
    class_name = "".join(part.capitalize() for part in name.strip("_").split("_"))
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(class_name, (torch.autograd.Function,), methods)


def _check_may_be_written(tensor: torch.Tensor) -> None:
    """Raise the errors of torch's in-place operators before any write."""
    base = tensor._base if tensor._is_view() else tensor
    if base is not None and base.is_leaf and base.requires_grad:
        what = "a leaf Variable" if base is tensor else "a view of a leaf Variable"
        raise RuntimeError(f"{what} that requires grad is being used in an in-place operation.")
