"""Results' types of equal calls of an operator in a trace are computed once."""

from __future__ import annotations

import torch
from onnxruntime_npu.opdef.fake_results import fake_results
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)


class Counted:
    """A reference that counts its runs."""

    def __init__(self, reference):
        self._reference = reference
        self.runs = 0

    def types(self, **arguments):
        """Return shape and dtype of each result of a call."""

        def compute():
            self.runs += 1
            return (self._reference(**arguments),)

        return [(tuple(y.shape), y.dtype) for y in fake_results("op", arguments, compute)]


def test_equal_calls_run_the_reference_once():
    add = Counted(lambda x, axis: x.sum(axis))
    with FakeTensorMode():
        x = torch.empty(2, 3, dtype=torch.float16)
        assert add.types(x=x, axis=0) == [((3,), torch.float16)]
        assert add.types(x=torch.empty_like(x), axis=0) == [((3,), torch.float16)]
        assert add.runs == 1
        assert add.types(x=x, axis=1) == [((2,), torch.float16)]
        assert add.types(x=x.float(), axis=1) == [((2,), torch.float32)]
        assert add.types(x=torch.empty(4, 3, dtype=torch.float16), axis=1) == [
            ((4,), torch.float16)
        ]
        assert add.runs == 4


def test_another_trace_runs_the_reference_again():
    double = Counted(lambda x: torch.cat([x, x]))
    for runs in (1, 2):
        with FakeTensorMode():
            assert double.types(x=torch.empty(2)) == [((4,), torch.float32)]
        assert double.runs == runs


def test_true_and_one_are_different_arguments():
    kept = Counted(lambda x, keepdim: x.sum(0, keepdim=keepdim is True))
    with FakeTensorMode():
        x = torch.empty(2, 3)
        assert kept.types(x=x, keepdim=1) == [((3,), torch.float32)]
        assert kept.types(x=x, keepdim=True) == [((1, 3), torch.float32)]


def test_sizes_of_a_symbol_are_computed_once():
    double = Counted(lambda x: torch.cat([x, x]))
    dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2)
    real = torch.empty(5, 7)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        x = mode.from_tensor(real, symbolic_context=dynamic)
        for _ in range(2):
            ((rows, width), _dtype) = double.types(x=x)[0]
            assert rows.node.expr == 2 * x.shape[0].node.expr
            assert width.node.expr == x.shape[1].node.expr
    assert double.runs == 1


def test_a_size_that_data_decides_is_new_in_each_call():
    nonzero = Counted(lambda x: torch.nonzero(x))
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(5)
        # Each call gets a tensor of its own: for one tensor torch keeps the number of nonzeros.
        sizes = [nonzero.types(x=torch.empty_like(x))[0][0][0] for _ in range(2)]
    assert nonzero.runs == 2
    symbols = [free_unbacked_symbols(size) for size in sizes]
    assert all(symbols)
    assert symbols[0] != symbols[1]


def test_a_constant_that_the_reference_reads_counts():
    rows = Counted(lambda x, count: x[: int(count)])
    with FakeTensorMode():
        x = torch.empty(5)
        for n in (2, 3):
            # torch keeps the value of a constant that a trace creates
            count = torch.tensor(n)
            assert count.constant is not None
            assert rows.types(x=x, count=count) == [((n,), torch.float32)]
