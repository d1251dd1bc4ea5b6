"""Functions and modules whose forward and backward passes are replays of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .devices import synchronize
from .graphs import NPUGraph, graph, graph_pool_handle
from .streams import Stream, StreamContext

__all__ = ["make_graphed_callables"]


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Capture callables on npu tensors and return replaying ones, with gradients.

    A graphed callable copies its arguments into static buffers, replays, and returns the static
    outputs, which the next call overwrites; so does its backward pass. Arguments must have the
    shapes, dtypes and requires_grad of the samples. A module whose training flag has changed since
    the capture runs its original forward.

    Args:
        callables: a function or module, or a tuple of them that share one memory pool and are
            called, and their backward passes in reverse, in this order.
        sample_args: a tuple of tensors, or a tuple of such tuples.
        num_warmup_iters: runs before the capture.
        allow_unused_input: whether an argument or parameter that requires a gradient may be unused.
        pool: see NPUGraph.capture_begin.

    Raises:
        RuntimeError: autocast caches casts; an argument is not a tensor, or it, a parameter or a
            buffer is not on npu; the counts differ; a module has hooks, or a buffer that requires a
            gradient.
    """
    import torch

    single = not isinstance(callables, tuple)
    functions: Sequence[Callable[..., Any]] = (callables,) if single else callables
    samples: Sequence[Sequence[Any]] = (sample_args,) if single else sample_args
    if len(functions) != len(samples):
        raise RuntimeError(
            f"expected sample_args for {len(functions)} callables, got {len(samples)}"
        )
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. "
            "Please set `cache_enabled=False`."
        )
    for function, arguments in zip(functions, samples, strict=True):
        _check(function, arguments)
    shared_pool = graph_pool_handle() if pool is None else pool
    passes = [_Passes(f, a) for f, a in zip(functions, samples, strict=True)]
    synchronize()
    with StreamContext(Stream()):
        for one in passes:
            for _ in range(num_warmup_iters):
                one.warm_up(allow_unused_input)
    synchronize()
    for one in passes:
        one.capture_forward(shared_pool)
    for one in reversed(passes):
        one.capture_backward(shared_pool, allow_unused_input)
    graphed = [one.replaying() for one in passes]
    return graphed[0] if single else tuple(graphed)


def _check(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    import torch

    if isinstance(function, torch.nn.Module):
        if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
            raise RuntimeError(
                "Modules must not have hooks registered at the time they are passed. However, "
                "registering hooks on modules after passing them through make_graphed_callables is "
                "allowed."
            )
        if any(b.requires_grad for b in function.buffers()):
            raise RuntimeError(
                "In any make_graphed_callables call, module buffers must have requires_grad=False"
            )
    samples = torch.utils._pytree.arg_tree_leaves(*arguments)
    if not all(isinstance(a, torch.Tensor) for a in samples):
        raise RuntimeError("make_graphed_callables: expected tensors only in sample_args")
    state = (
        [*function.parameters(), *function.buffers()]
        if isinstance(function, torch.nn.Module)
        else []
    )
    for tensor in (*samples, *state):
        if tensor.device.type != "npu":
            raise RuntimeError(
                "[make_graphed_callables] expected sample_args, parameters and buffers on npu, got "
                f"a tensor on {tensor.device}, whose operators a graph does not replay; move it by "
                ".npu()"
            )


class _Passes:
    """The forward and the backward pass of one callable, and the buffers between them."""

    def __init__(self, function: Callable[..., Any], samples: Sequence[Any]) -> None:
        import torch

        self._function = function
        self._is_module = isinstance(function, torch.nn.Module)
        self._original: Callable[..., Any] = (
            function.forward if self._is_module else function  # type: ignore[attr-defined]
        )
        self._training = getattr(function, "training", None) if self._is_module else None
        leaves, self._structure = torch.utils._pytree.tree_flatten(tuple(samples))
        self._inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in leaves]
        parameters = function.parameters() if self._is_module else ()  # type: ignore[attr-defined]
        self._parameters = tuple(parameters)
        self._forward, self._backward = NPUGraph(), NPUGraph()
        self._outputs: list[Any] = []
        self._output_structure: Any = None
        self._output_gradients: list[Any] = []
        self._input_gradients: list[Any] = []

    def _run(self) -> list[Any]:
        import torch

        arguments = torch.utils._pytree.tree_unflatten(self._inputs, self._structure)
        leaves, self._output_structure = torch.utils._pytree.tree_flatten(
            self._original(*arguments)
        )
        return leaves

    def _differentiate(self, outputs: Sequence[Any], gradients: Sequence[Any], unused: bool) -> Any:
        import torch

        wanted = [t for t in (*self._inputs, *self._parameters) if t.requires_grad]
        made = [o for o in outputs if o.requires_grad]
        if not wanted or not made:
            return []
        given = [g for g in gradients if g is not None]
        return torch.autograd.grad(made, wanted, given, only_inputs=True, allow_unused=unused)

    def warm_up(self, unused: bool) -> None:
        import torch

        outputs = self._run()
        gradients = [torch.empty_like(o) if o.requires_grad else None for o in outputs]
        self._differentiate(outputs, gradients, unused)

    def capture_forward(self, pool: tuple[int, int]) -> None:
        with graph(self._forward, pool):
            self._outputs = self._run()

    @property
    def _is_differentiable(self) -> bool:
        """Whether a captured output has a gradient."""
        return any(o.requires_grad for o in self._outputs)

    def capture_backward(self, pool: tuple[int, int], unused: bool) -> None:
        import torch

        self._output_gradients = [
            torch.empty_like(o) if o.requires_grad else None for o in self._outputs
        ]
        found: Iterator[Any] = iter(())
        if self._is_differentiable:
            with graph(self._backward, pool):
                found = iter(self._differentiate(self._outputs, self._output_gradients, unused))
        self._input_gradients = [
            next(found, None) if t.requires_grad else None
            for t in (*self._inputs, *self._parameters)
        ]

    def replaying(self) -> Any:
        """The replaying callable; a module gets its forward replaced."""
        import torch

        passes = self

        class Graphed(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> tuple[Any, ...]:
                for buffer, given in zip(passes._inputs, inputs, strict=False):
                    _copy_into(buffer, given)
                passes._forward.replay()
                return tuple(o.detach() for o in passes._outputs)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
                for buffer, given in zip(passes._output_gradients, gradients, strict=True):
                    if buffer is not None:
                        _copy_into(buffer, given)
                if passes._is_differentiable:
                    passes._backward.replay()
                # Not the buffers themselves: a parameter may accumulate in one as its .grad.
                return tuple(None if g is None else g.clone() for g in passes._input_gradients)

        def replay(*arguments: Any) -> Any:
            if self._is_module and self._function.training != self._training:  # type: ignore[attr-defined]
                return self._original(*arguments)
            leaves = torch.utils._pytree.arg_tree_leaves(*arguments)
            if len(leaves) != len(self._inputs):
                raise RuntimeError(f"expected {len(self._inputs)} arguments, got {len(leaves)}")
            outputs = Graphed.apply(*leaves, *self._parameters)
            return torch.utils._pytree.tree_unflatten(list(outputs), self._output_structure)

        if not self._is_module:
            return replay
        self._function.forward = replay  # type: ignore[attr-defined]
        return self._function


def _copy_into(buffer: Any, given: Any) -> None:
    if buffer.shape != given.shape or buffer.dtype != given.dtype:
        raise RuntimeError(
            f"expected an argument of shape {tuple(buffer.shape)} and {buffer.dtype}, as captured, "
            f"got {tuple(given.shape)} and {given.dtype}"
        )
    if buffer.data_ptr() != given.data_ptr():
        buffer.detach().copy_(given)
