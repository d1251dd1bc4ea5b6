"""Tracing with sizes that are not known: an operator keeps every size open that it can.

Each sample is traced with a symbol for every size above 1 (torch traces 0 and 1 as they are) and
for every entry of a SymInt list. A size that the trace has fixed must be one that the operator
refuses to change, alone or together with others that are equal to it; where it is fixed all the
same, the definition says so with ``op.static``. Sizes that the trace has kept are free indeed: one
compiled function takes the call, two to four times as large.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from onnxruntime_npu.opdef import Op, all_ops
from op_paths import _call, _clone, _flat, _map, bind, samples
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shapes_config
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

pytestmark = pytest.mark.slow  # a trace of each operator

# A size of a call: argument, number in a list of tensors, axis; or argument, None, entry of a list.
Place = tuple[str, int | None, int]


def _calls(count: int) -> pytest.MarkDecorator:
    """One parameter per operator and sample, all but the first ``count`` exhaustive."""
    return pytest.mark.parametrize(
        ("op", "i"),
        [
            pytest.param(
                *(op, i),
                id=f"{op.name}-{sample.id or i}",
                marks=[pytest.mark.exhaustive] if i >= count else [],
            )
            for op in all_ops().values()
            for i, sample in enumerate(samples(op, op.sample_dtypes[0]))
        ],
    )


def _tensors(bound: Mapping[str, Any]) -> Iterator[tuple[str, int, torch.Tensor]]:
    for name, value in bound.items():
        for i, tensor in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(tensor, torch.Tensor):
                yield name, i, tensor


def _rank(bound: Mapping[str, Any], place: Place) -> int:
    name, i, _ = place
    value = bound[name]
    if i is None:
        return 1
    return (value[i] if isinstance(value, list) else value).dim()


def _symbolic_lists(op: Op) -> list[str]:
    return [x.name for x in op.inputs if x.argument.type.base == "SymInt"]


def _sizes(op: Op, bound: Mapping[str, Any]) -> dict[Place, int]:
    """Return the sizes that get a symbol."""
    sizes: dict[Place, int] = {
        (name, i, axis): n
        for name, i, tensor in _tensors(bound)
        for axis, n in enumerate(tensor.shape)
        if n > 1
    }
    for name in _symbolic_lists(op):
        sizes |= {(name, None, k): n for k, n in enumerate(bound[name] or ()) if n > 1}
    return sizes


def _trace(op: Op, bound: Mapping[str, Any]) -> dict[Place, Any]:
    """Return what became of each size: its symbol, or the number that it was fixed to."""
    shapes = ShapeEnv(duck_shape=False)
    traced: dict[Place, Any] = {}
    with FakeTensorMode(shape_env=shapes) as mode:

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * tensor.dim())
            return mode.from_tensor(tensor, symbolic_context=context)

        values = {name: _map(fake, value) for name, value in bound.items()}
        for name in _symbolic_lists(op):
            if bound[name] is not None:
                values[name] = [
                    _symbol(shapes, n, f"{name}_{k}") if n > 1 else n
                    for k, n in enumerate(bound[name])
                ]
        for name, i, tensor in _tensors(values):
            traced |= {(name, i, axis): n for axis, n in enumerate(tensor.shape)}
        for name in _symbolic_lists(op):
            traced |= {(name, None, k): n for k, n in enumerate(values[name] or ())}
        _call(getattr(torch.ops.npu, op.name), op, values)
    return {
        place: shapes.replace(n.node.expr) if isinstance(n, torch.SymInt) else n
        for place, n in traced.items()
    }


def _symbol(shapes: ShapeEnv, n: int, name: str) -> Any:
    from torch._dynamo.source import ConstantSource

    source = ConstantSource(name)
    symbol = shapes.create_symbol(n, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    return shapes.create_symintnode(symbol, hint=n, source=source)


def _resized(bound: Mapping[str, Any], sizes: Mapping[Place, int]) -> dict[str, Any]:
    """Return the call with other sizes: cut, or repeated from the beginning."""
    changed = {n: list(v) if isinstance(v, (list, tuple)) else v for n, v in bound.items()}
    for (name, i, axis), size in sizes.items():
        if i is None:
            changed[name][axis] = size
            continue
        value = changed[name]
        tensor = value[i] if isinstance(value, list) else value
        rows = torch.arange(size) % max(tensor.shape[axis], 1)
        tensor = tensor.index_select(axis, rows)
        if isinstance(value, list):
            value[i] = tensor
        else:
            changed[name] = tensor
    return changed


def _takes(op: Op, bound: Mapping[str, Any]) -> bool:
    """Whether the operator takes a call, as far as shapes tell."""
    try:
        with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True) as mode:
            op.call_reference(**{n: _map(mode.from_tensor, v) for n, v in bound.items()})
    except Exception:
        return False
    return True


def _is_fixed(size: Any) -> bool:
    return isinstance(size, int) or bool(size.is_number)


@_calls(2)  # they show most faults of an operator, and a trace takes about a second
def test_no_size_is_fixed_that_could_be_another(op: Op, i: int) -> None:
    bound = bind(op, samples(op, op.sample_dtypes[0])[i])
    sizes = _sizes(op, bound)
    traced = _trace(op, bound)
    fixed = [p for p in sizes if _is_fixed(traced[p])]
    fixed = [p for p in fixed if not op.is_static(p[0], p[2], _rank(bound, p))]
    needless = []
    for place in fixed:
        equal = [p for p in fixed if sizes[p] == sizes[place] and p != place]
        groups = itertools.chain.from_iterable(
            itertools.combinations(equal, n) for n in range(min(len(equal), 6) + 1)
        )
        for group in itertools.islice(groups, 64):
            together = dict.fromkeys((place, *group), sizes[place] + 1)
            changed = _resized(bound, together)
            # What is fixed here alone makes a size of 1 inside, say of rows behind a sequence.
            if _takes(op, changed) and _is_fixed(_trace(op, changed)[place]):
                needless.append((place, sizes[place], group))
                break
    assert not needless, f"fixed, though a call with another size is taken: {needless}"


def _free(op: Op, bound: Mapping[str, Any]) -> dict[Any, list[Place]]:
    """Return the sizes that the trace has kept, those together that have to be equal."""
    groups: dict[Any, list[Place]] = {}
    sizes = _sizes(op, bound)
    for place, expression in _trace(op, bound).items():
        if place in sizes and getattr(expression, "is_symbol", False) and place[1] is not None:
            groups.setdefault(expression, []).append(place)
    return groups


def _runs(op: Op, bound: Mapping[str, Any]) -> bool:
    """Whether the operator takes a call with the values it has, such as indices below a size."""
    try:
        op.call_reference(**_clone(bound))
    except Exception:
        return False
    return True


def _multiples(op: Op, bound: Mapping[str, Any]) -> list[dict[Place, int]]:
    """Return the free sizes times 2, 3 and 4, as far as the operator takes them together."""
    sizes = _sizes(op, bound)

    def multiples(places: list[Place]) -> list[dict[Place, int]]:
        return [{p: sizes[p] * factor for p in places} for factor in (2, 3, 4)]

    def run(places: list[Place]) -> bool:
        return all(_runs(op, _resized(bound, larger)) for larger in multiples(places))

    groups = list(_free(op, bound).values())
    free = list(itertools.chain.from_iterable(groups))  # sizes may depend on each other
    if free and not run(free):
        free = []
        for group in groups:
            if run([*free, *group]):
                free += group
    return multiples(free) if free else []


def _one_of_each_family() -> list[object]:
    """One parameter per operator, all but the first of each family exhaustive."""
    families: set[str] = set()
    found = []
    for op in all_ops().values():
        marks = [pytest.mark.exhaustive] if op.family in families else []
        found.append(pytest.param(op, id=op.name, marks=marks))
        families.add(op.family)
    return found


@pytest.mark.parametrize("op", _one_of_each_family())
def test_one_compilation_serves_all_sizes(op: Op) -> None:
    """Of others, opcheck compiles a call with open sizes."""
    bound = bind(op, samples(op, op.sample_dtypes[0])[0])
    multiples = _multiples(op, bound)
    if not multiples:  # no size can change, with the others and the values as they are
        return
    counter = CompileCounter()
    torch._dynamo.reset()
    tensors = [name for name, _, _ in _tensors(bound)]

    def call(given: dict[str, Any]) -> Any:
        return _call(getattr(torch.ops.npu, op.name), op, {**bound, **given})

    compiled = torch.compile(call, backend=counter, dynamic=True)
    # Sizes of one number are not one size; sizes that depend on values get symbols as well.
    with (
        shapes_config.patch(use_duck_shape=False),
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
    ):
        for sizes in multiples:  # a size of 1, also of a half, is traced as it is
            changed = _clone(_resized(bound, sizes))
            _flat(compiled({name: changed[name] for name in tensors}))
    assert counter.frame_count == 1, "compiled anew for other sizes"


@pytest.mark.parametrize("op", _one_of_each_family())
def test_export_keeps_sizes_open(op: Op) -> None:
    """What a trace of the operator alone keeps open, torch.export keeps open as well."""
    tried = 0
    for sample in samples(op, op.sample_dtypes[0]):
        bound = bind(op, sample)
        places = [place for group in _free(op, bound).values() for place in group]
        if not places:
            continue
        if tried == 1:  # of a few seconds
            break
        tried += 1
        names = list(dict.fromkeys(name for name, _, _ in _tensors(bound)))

        class Model(torch.nn.Module):
            def forward(self, *given: Any, names=names, bound=bound) -> Any:
                values = {**bound, **dict(zip(names, given, strict=True))}
                returned = _flat(_call(getattr(torch.ops.npu, op.name), op, values))
                return returned or [values[o.mutates] for o in op.outputs if o.mutates]

        given = tuple(_map(lambda t: t.contiguous().clone(), bound[name]) for name in names)

        def dims(name: str, i: int, rank: int, places=places) -> dict[int, Any]:
            # Others may depend on these, as an even size does on its half.
            dynamic, other = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
            return {a: dynamic if (name, i, a) in places else other for a in range(rank)}

        shapes = tuple(
            [dims(name, i, t.dim()) for i, t in enumerate(value)]
            if isinstance(value, (list, tuple))
            else dims(name, 0, value.dim())
            for name, value in zip(names, given, strict=True)
        )
        torch.export.export(Model(), given, dynamic_shapes=(shapes,))
    if not tried:
        assert not any(_free(op, bind(op, s)) for s in samples(op, op.sample_dtypes[0]))
