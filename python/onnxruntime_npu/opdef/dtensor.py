"""Operators on ``torch.distributed.tensor.DTensor``: each rank runs the operator on its parts.

A call with DTensors chooses a division of its arguments (dtensor_divisions.py), redistributes them
to it, runs the operator on the parts, where its own gradient belongs, and joins the results to
DTensors. Without a division that needs less communication, every rank computes the whole.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .composition import Composition
from .definition import Op
from .dtensor_divisions import DIVISIONS, SUM, WHOLE, Division, only_division
from .schema import Schema

_MODULE = "torch.distributed.tensor"


def has_dtensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a tensor of the call is a DTensor."""
    module = sys.modules.get(_MODULE)
    if module is None or not hasattr(module, "DTensor"):
        return False
    return any(isinstance(leaf, module.DTensor) for leaf in pytree.tree_leaves((args, kwargs)))


class DTensorCall:
    """One torch name of an operator, called with DTensors."""

    def __init__(self, op: Op | Composition, schema: Schema, overload: Any):
        self._op = op
        self._schema = schema
        self._overload = overload
        self._names = [a.name for a in schema.arguments]
        self._keyword_only = {a.name for a in schema.arguments if a.keyword_only}
        self._defaults = {a.name: a.default for a in schema.arguments if not a.required}
        self._tensors = [a.name for a in schema.arguments if a.type.is_tensor]
        self._written = {a.type.alias: a.name for a in schema.arguments if a.type.mutated}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on this rank's parts."""
        bound = {**self._defaults, **dict(zip(self._names, args, strict=False)), **kwargs}
        mesh = self._mesh(bound)
        divisions = self._divisions(bound, mesh)
        local = dict(bound)
        for division in divisions:
            local |= division.changed
        for name in self._tensors:
            part = functools.partial(self._part, name=name, mesh=mesh, divisions=divisions)
            local[name] = pytree.tree_map_only(torch.Tensor, part, bound[name])
        positional = [local[n] for n in self._names if n not in self._keyword_only]
        results = self._overload(*positional, **{n: local[n] for n in self._keyword_only})
        return self._joined(results, bound, mesh, divisions)

    def _mesh(self, bound: Mapping[str, Any]) -> Any:
        from torch.distributed.tensor import DTensor

        tensors = pytree.tree_leaves([bound[name] for name in self._tensors])
        meshes = {x.device_mesh for x in tensors if isinstance(x, DTensor)}
        plain = [x for x in tensors if isinstance(x, torch.Tensor) and not isinstance(x, DTensor)]
        if len(meshes) > 1:
            raise self._error(f"DTensors of one mesh, got {', '.join(map(str, meshes))}")
        # Integers, such as a list of group sizes, are taken for the same on all ranks.
        if any(x.dim() and x.is_floating_point() for x in plain):
            raise self._error("DTensors only, got a plain tensor, too: distribute_tensor() it")
        return meshes.pop()

    def _error(self, text: str) -> RuntimeError:
        return RuntimeError(f"[{self._schema.name}] expected {text}")

    def _divisions(self, bound: Mapping[str, Any], mesh: Any) -> list[Division]:
        """Return how each dimension of the mesh divides the call."""
        only = only_division(self._op.name, bound)
        if only is not None:
            if mesh.ndim > 1:
                raise self._error(f"DTensors of a mesh of one dimension, got one of {mesh.ndim}")
            return [only]
        chosen: list[Division] = []
        now = dict(bound)
        for axis in range(mesh.ndim):
            options = [WHOLE, *DIVISIONS.get(self._schema.name, lambda _: ())(now)]
            fitting = [o for o in options if self._divides(o, now, mesh.size(axis), chosen, mesh)]
            best = min(fitting, key=lambda option: self._cost(option, now, axis))
            changed = {n: value // mesh.size(axis) for n, value in best.divided.items()}
            chosen.append(best._replace(changed=changed))
            now |= changed
        return chosen

    def _divides(
        self,
        division: Division,
        bound: Mapping[str, Any],
        ranks: int,
        before: Sequence[Division],
        mesh: Any,
    ) -> bool:
        """Whether every divided dimension has as much for each of the ranks."""
        for name, dim in division.inputs.items():
            parts = math.prod(
                mesh.size(i) for i, d in enumerate(before) if d.inputs.get(name) == dim
            )
            for x in pytree.tree_leaves(bound[name]):
                if x is not None and x.shape[dim] % (ranks * parts):
                    return False
        return all(value % ranks == 0 for value in division.divided.values())

    def _cost(self, division: Division, bound: Mapping[str, Any], axis: int) -> int:
        """Return how many elements the ranks send for it."""
        total = 0
        for name in self._tensors:
            for x in pytree.tree_leaves(bound[name]):
                if not hasattr(x, "placements"):
                    continue
                have, dim = x.placements[axis], division.inputs.get(name)
                if have.is_partial():
                    total += x.numel() * (2 if dim is None else 1)
                elif have.is_shard() and (dim is None or not have.is_shard(dim)):
                    total += x.numel()
        return total

    def _part(self, x: Any, *, name: str, mesh: Any, divisions: list[Division]) -> Any:
        if not hasattr(x, "placements"):
            return x
        placements = _placements([d.inputs.get(name) for d in divisions])
        if name in self._written.values() and tuple(x.placements) != tuple(placements):
            raise self._error(
                f"'{name}', which is written, to have the placements {tuple(placements)}, "
                f"got {tuple(x.placements)}: redistribute() it"
            )
        gradients = [
            SUM if name not in d.inputs and d.inputs else d.inputs.get(name) for d in divisions
        ]
        return x.redistribute(mesh, placements).to_local(grad_placements=_placements(gradients))

    def _joined(
        self, results: Any, bound: Mapping[str, Any], mesh: Any, divisions: list[Division]
    ) -> Any:
        if results is None:
            return None
        several = isinstance(results, (tuple, list)) and len(self._schema.returns) > 1
        joined = []
        for i, result in enumerate(results if several else (results,)):
            alias = self._schema.returns[i].type.alias
            if alias in self._written:
                joined.append(bound[self._written[alias]])
                continue
            placements = _placements([d.output(i) for d in divisions])
            joined.append(pytree.tree_map_only(torch.Tensor, _join(mesh, placements), result))
        return tuple(joined) if several else joined[0]


def _placements(dims: Sequence[int | str | None]) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return [
        Replicate() if dim is None else Partial() if isinstance(dim, str) else Shard(dim)
        for dim in dims
    ]


def _join(mesh: Any, placements: list[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    from torch.distributed.tensor import DTensor, Replicate

    def join(local: torch.Tensor) -> torch.Tensor:
        whole = placements if local.numel() else [Replicate()] * mesh.ndim
        return DTensor.from_local(local, mesh, whole, run_check=False)

    return join


_calls: dict[Any, DTensorCall] = {}


def add_call(overload: Any, call: DTensorCall) -> None:
    """Let DTensor's dispatch, where no gradient is needed, run the operator by the call."""
    _calls[overload] = call
    module = sys.modules.get(_MODULE)
    if module is not None and hasattr(module, "DTensor"):
        _handle(module)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


def _handle(module: Any) -> None:
    handlers = module.DTensor._op_dispatcher._custom_op_handlers
    for overload, call in _calls.items():
        handlers[overload] = _Handler(call)
    _calls.clear()


class _Handler:
    def __init__(self, call: DTensorCall):
        self._call = call

    def __call__(self, overload: Any, args: Any, kwargs: Any) -> Any:
        with torch.no_grad():
            return self._call(*args, **kwargs)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Hands the calls to torch's module when it is imported, which takes long."""

    def __init__(self) -> None:
        self._asks = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the spec of torch's module with a loader that hands it the calls."""
        if name != _MODULE or self._asks:
            return None
        self._asks = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _handle(module)

        loader.exec_module = exec_module
