"""Gradients of every operator that has an ``@op.backward``, from the definitions alone.

The formula is compared with finite differences of the float64 reference, the gradients of a call
through the kernel with autograd through that reference.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.opdef import DefinitionError, Op, all_ops, npu_op
from onnxruntime_npu.opdef import dtypes as dt
from onnxruntime_npu.opdef.autograd import make_node
from op_paths import bind, samples

OPS = list(all_ops().values())
DIFFERENTIABLE = [op for op in OPS if op.backward_formula]
# Without those whose gradient takes something for constant, which finite differences would not.
EXACT = [op for op in DIFFERENTIABLE if not op.backward_formula.constants]
# Finite differences of every element up to this size, of random directions beyond it.
_ELEMENTS_ONE_BY_ONE = 40
# A formula does not depend on size: large samples exist to exercise the kernel's threads.
_MOST_ELEMENTS = 4096
# Relative to the max gradient, because sums cancel: float32 arithmetic in another order; one
# rounding of the result and one of what the formula reads of the forward pass.
_PRECISION = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _calls(
    ops: list[Op], dtypes: slice = slice(None), most_elements: float = math.inf
) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("op", "dtype", "i"),
        [
            pytest.param(op, dtype, i, id=f"{op.name}-{dtype}-{sample.id or i}")
            for op in ops
            for dtype in filter(dt.is_floating, op.sample_dtypes[dtypes])
            for i, sample in enumerate(samples(op, dtype))
            if sum(t.numel() for t in sample.args if _is_tensor(t)) <= most_elements
        ],
    )


def _bound(op: Op, dtype: str, i: int, *, wide: bool = False) -> dict[str, Any]:
    """Return the arguments of a sample; differentiable ones are leaves that require a gradient."""
    formula = op.backward_formula

    def copy(tensor: torch.Tensor, leaf: bool) -> torch.Tensor:
        floating = tensor.is_floating_point()
        dtype = torch.float64 if wide and floating else tensor.dtype
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype).copy_(tensor)
        return made.requires_grad_(leaf and floating)

    bound = bind(op, samples(op, dtype)[i])
    for name, value in bound.items():
        leaf = formula is None or name in formula.arguments
        if isinstance(value, torch.Tensor):
            bound[name] = copy(value, leaf)
        elif isinstance(value, list) and any(isinstance(v, torch.Tensor) for v in value):
            bound[name] = [None if v is None else copy(v, leaf) for v in value]
    return bound


def _split(op: Op, bound: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    args = [bound[a.name] for a in op.schema.arguments if not a.keyword_only]
    return args, {a.name: bound[a.name] for a in op.schema.arguments if a.keyword_only}


def _leaves(bound: dict[str, Any]) -> list[torch.Tensor]:
    tensors = []
    for value in bound.values():
        for v in value if isinstance(value, list) else [value]:
            if isinstance(v, torch.Tensor) and v.requires_grad:
                tensors.append(v)
    return tensors


def _with_leaves(bound: dict[str, Any], leaves: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    rest = iter(leaves)

    def swap(value: Any) -> Any:
        if isinstance(value, list):
            return [swap(v) for v in value]
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return next(rest)
        return value

    return {name: swap(value) for name, value in bound.items()}


def _flat(results: Any) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, int):  # e.g. a seed
        return []
    return [t for r in results or () for t in _flat(r)]


def _formula_over_reference(op: Op, bound: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of the leaves whose forward is the reference, backward the formula."""
    node = make_node(op, op.schema, {})
    assert op.backward_formula is not None
    wanted = op.backward_formula.outputs

    def run(*args: Any, **kwargs: Any) -> Any:
        results = op.call_reference(*args, **kwargs)[: len(op.schema.returns)]
        return results[0] if len(results) == 1 else results

    def function(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = _split(op, _with_leaves(bound, leaves))
        results = node(run, args, kwargs)
        named = zip(
            (o.name for o in op.outputs),
            results if isinstance(results, tuple) else (results,),
            strict=False,
        )
        return tuple(t for name, result in named if name in wanted for t in _flat(result))

    return function


@_calls(EXACT, slice(1), most_elements=_MOST_ELEMENTS)
def test_formula_passes_gradcheck(op: Op, dtype: str, i: int) -> None:
    bound = _bound(op, dtype, i, wide=True)
    leaves = _leaves(bound)
    fast = sum(t.numel() for t in leaves) > _ELEMENTS_ONE_BY_ONE
    function = _formula_over_reference(op, bound)
    assert torch.autograd.gradcheck(function, leaves, fast_mode=fast)


@pytest.mark.parametrize(
    "op", [op for op in DIFFERENTIABLE if op.differentiable_twice], ids=lambda op: op.name
)
def test_formula_passes_gradgradcheck(op: Op) -> None:
    bound = _bound(op, op.sample_dtypes[0], 0, wide=True)
    leaves = _leaves(bound)
    function = _formula_over_reference(op, bound)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize(
    "op", [op for op in DIFFERENTIABLE if not op.differentiable_twice], ids=lambda op: op.name
)
def test_second_derivative_is_refused_if_it_would_be_wrong(op: Op) -> None:
    bound = _bound(op, op.sample_dtypes[0], 0)
    args, kwargs = _split(op, bound)
    y = next(t for t in _flat(getattr(onnxruntime_npu, op.name)(*args, **kwargs)) if t.grad_fn)
    first = torch.autograd.grad(y.square().sum(), _leaves(bound), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


@_calls(DIFFERENTIABLE)
def test_gradients_of_the_kernel(op: Op, dtype: str, i: int) -> None:
    bound = _bound(op, dtype, i)
    args, kwargs = _split(op, bound)
    results = _flat(getattr(onnxruntime_npu, op.name)(*args, **kwargs))
    assert op.backward_formula is not None
    differentiable = [k for k, r in enumerate(results) if r.requires_grad]
    assert differentiable
    generator = torch.Generator().manual_seed(1)
    weights = {k: torch.randn(results[k].shape, generator=generator) for k in differentiable}

    def gradients(outputs: list[torch.Tensor], of: dict[str, Any]) -> tuple[Any, ...]:
        grads = [weights[k].to(outputs[k].dtype) for k in differentiable]
        return torch.autograd.grad(
            [outputs[k] for k in differentiable],
            _leaves(of),
            [
                g.to(results[k].dtype).to(g.dtype)
                for k, g in zip(differentiable, grads, strict=True)
            ],
            allow_unused=True,
        )

    got = gradients(results, bound)
    exact = _bound(op, dtype, i, wide=True)
    want = gradients(_flat(op.call_reference(**exact)), exact)
    for leaf, g, w in zip(_leaves(bound), got, want, strict=True):
        if g is None or w is None:  # both mean zero
            assert (g is None or not g.any()) and (w is None or not w.any())
            continue
        assert g.dtype == leaf.dtype
        largest = w.abs().max().item() if w.numel() else 0.0
        # A float32 argument's gradient, too, comes from results rounded to the call's dtype.
        precision = max(_PRECISION[dt.from_torch(leaf.dtype)], _PRECISION[dtype])
        torch.testing.assert_close(g.double(), w, rtol=precision, atol=precision * (largest + 1e-3))


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_opcheck_with_gradients(op: Op) -> None:
    args, kwargs = _split(op, _bound(op, op.sample_dtypes[0], 0))
    checks = ["test_schema", "test_autograd_registration", "test_aot_dispatch_dynamic"]
    if not dt.is_floating(op.outputs[0].dtypes[0]):
        checks.pop()  # sums the results in the dtype of the first
    overload = getattr(torch.ops.npu, op.name).default
    torch.library.opcheck(overload, tuple(args), kwargs, test_utils=checks)


@pytest.mark.skipif(not torch_device.is_built(), reason="built without the torch bridge")
@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradients_on_the_npu(op: Op) -> None:
    def gradients(device: str) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        bound = _bound(op, op.sample_dtypes[0], 1)
        for name, value in bound.items():
            if isinstance(value, torch.Tensor):
                bound[name] = value.detach().to(device).requires_grad_(value.requires_grad)
        args, kwargs = _split(op, bound)
        results = _flat(getattr(onnxruntime_npu, op.name)(*args, **kwargs))
        results = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
        torch.manual_seed(1)  # a seed was drawn from the generator of the call's device
        weights = [torch.randn(r.shape).to(device) for r in results]
        grads = torch.autograd.grad(results, _leaves(bound), weights, allow_unused=True)
        assert all(g is None or g.device.type == device for g in grads)
        return [None if g is None else g.cpu() for g in grads]

    torch.testing.assert_close(gradients("npu"), gradients("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_no_grad_records_nothing(op: Op) -> None:
    args, kwargs = _split(op, _bound(op, op.sample_dtypes[0], 0))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            results = _flat(getattr(onnxruntime_npu, op.name)(*args, **kwargs))
        assert not any(r.requires_grad for r in results)


def _without_formula() -> list[Any]:
    cases = []
    for op in OPS:
        bound = bind(op, samples(op, op.sample_dtypes[0])[0])
        floats = any(
            t.is_floating_point() for t in _flat([v for v in bound.values() if _is_tensor(v)])
        )
        results = [dt.is_floating(o.dtypes[0]) for o in op.outputs if not o.mutates]
        if op.backward_formula is None and floats and any(results):
            cases.append(pytest.param(op, id=op.name))
    return cases


@pytest.mark.parametrize("op", _without_formula())
def test_missing_formula_is_an_error_in_backward(op: Op) -> None:
    bound = _bound(op, op.sample_dtypes[0], 0)
    written = [o.mutates for o in op.outputs if o.mutates]
    for name in written:
        bound[name].requires_grad_(False)
    args, kwargs = _split(op, bound)
    results = _flat(getattr(onnxruntime_npu, op.name)(*args, **kwargs))
    recorded = [r for r in results if r.requires_grad]
    if not recorded:  # no result of the sample is floating, e.g. int8
        assert not any(r.is_floating_point() for r in results)
        return
    with pytest.raises(NotImplementedError, match=f"derivative for npu::{op.name} is not impl"):
        recorded[0].sum().backward()


def test_only_tensors_used_by_the_formula_are_saved() -> None:
    """The softmax reads its result, not its argument; SiLU reads its argument."""

    def is_kept(call: Callable[[torch.Tensor], torch.Tensor]) -> bool:
        x = torch.ones(2, 4, requires_grad=True) * 1
        kept = weakref.ref(x)
        y = call(x)
        assert y.grad_fn is not None
        del x
        return kept() is not None

    mask = torch.zeros(2, 4, dtype=torch.bool)
    assert not is_kept(lambda x: onnxruntime_npu.npu_scaled_masked_softmax(x, mask))
    assert is_kept(onnxruntime_npu.npu_silu)


# ---- in-place variants ----------------------------------------------------------------------


def test_in_place_gradient_on_a_tensor_and_on_a_view() -> None:
    def gradient(silu_: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        x = torch.linspace(-3, 3, 12).reshape(4, 3).requires_grad_()
        base = x * 2
        assert silu_(base[1:3]) is not None
        silu_(base)
        return torch.autograd.grad(base.square().sum(), x)[0]

    got = gradient(onnxruntime_npu.npu_silu_)
    want = gradient(lambda t: torch.nn.functional.silu(t, inplace=True))
    torch.testing.assert_close(got, want)


def test_in_place_on_a_leaf_is_refused_before_it_is_written() -> None:
    x = torch.ones(3, requires_grad=True)
    for target, what in [(x, "a leaf Variable"), (x[:2], "a view of a leaf Variable")]:
        with pytest.raises(RuntimeError, match=f"{what} that requires grad is being used in an in"):
            onnxruntime_npu.npu_silu_(target)
    assert x.tolist() == [1, 1, 1]


def test_overwriting_a_saved_tensor_is_detected() -> None:
    x = torch.ones(3, requires_grad=True) * 1
    y = onnxruntime_npu.npu_silu(x)
    onnxruntime_npu.npu_silu_(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_compiled_with_an_in_place_call() -> None:
    _ = onnxruntime_npu.npu_silu_

    def function(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        hidden = x * 2
        torch.ops.npu.npu_silu_(hidden)
        return torch.ops.npu.npu_rms_norm(hidden, gamma)[0]

    x = torch.randn(3, 8, requires_grad=True)
    gamma = torch.randn(8, requires_grad=True)
    weight = torch.randn(3, 8)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad((compiled(x, gamma) * weight).sum(), (x, gamma))
    want = torch.autograd.grad((function(x, gamma) * weight).sum(), (x, gamma))
    torch.testing.assert_close(got, want)


# ---- the definition -------------------------------------------------------------------------


def _op() -> Op:
    dtypes = {"self": ["float32"], "mask": ["float32"], "y": ["float32"]}
    return npu_op("npu_x(Tensor self, Tensor mask) -> Tensor", onnx="X", dtypes=dtypes)


def test_backward_receives_only_the_arguments_of_the_call() -> None:
    with pytest.raises(DefinitionError, match="expected the backward to take grad_<output>, argum"):
        _op().backward("self")(lambda grad_y, other: grad_y)
    with pytest.raises(DefinitionError, match="expected the backward to name tensors of"):
        _op().backward("other")(lambda grad_y: grad_y)
    with pytest.raises(DefinitionError, match="expected the backward to take a grad_<output>"):
        _op().backward("self")(lambda self: self)


def test_non_differentiable_argument_is_refused_at_the_call() -> None:
    op = _op()
    op.backward("self")(lambda grad_y, mask: grad_y * mask)
    node = make_node(op, op.schema, {})
    x, mask = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"\[npu_x\] the derivative for 'mask' is not impl"):
        node(torch.mul, (x, mask), {})
    node(torch.mul, (x, mask.detach()), {}).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1]


def test_tensor_lists_have_gradients() -> None:
    op = npu_op(
        "npu_x(Tensor[] xs) -> Tensor[]",
        onnx="X",
        outputs=["ys"],
        dtypes={"xs": ["float32"], "ys": ["float32"]},
    )

    @op.backward("xs")
    def backward(grad_ys: Any, xs: Any) -> Any:
        return [None if g is None else 2 * x * g for x, g in zip(xs, grad_ys, strict=True)]

    node = make_node(op, op.schema, {})
    xs = [torch.tensor([3.0], requires_grad=True), torch.tensor([4.0], requires_grad=True)]
    ys = node(lambda xs: [x * x for x in xs], (xs,), {})
    assert isinstance(ys, list)
    ys[1].backward()
    assert xs[0].grad is None and xs[1].grad is not None and xs[1].grad.tolist() == [8]
