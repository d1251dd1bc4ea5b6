"""Rows by index, running products and extremes, sorted search, counts, bags of embeddings."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")
INTEGERS = [torch.int64, torch.int32, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_indexed_rows(dim, dtype):
    x = make(dtype, 4, 5, 6)
    index = torch.tensor([2, 0, 2])
    source = make(dtype, *(3 if d == dim % 3 else n for d, n in enumerate(x.shape)), seed=1)
    check(lambda x, i, s: torch.index_add(x, dim, i, s, alpha=0.5), x, index, source)
    check(
        lambda x, i, s: x.transpose(0, 2).index_add(2 - dim % 3, i, s.transpose(0, 2)),
        x,
        index,
        source,
    )
    check(
        lambda x, i, s: x.index_copy(dim, i[:2], s.narrow(dim, 0, 2).detach()),
        x,
        index,
        source.detach(),
    )
    check(lambda x, i: x.index_fill(dim, i, 3), x, index)
    check(lambda x, i, v: x.index_fill(dim, i, v), x, index, make(dtype).detach())


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool, torch.complex64], ids=str)
def test_indexed_rows_of_other_types(dtype):
    x, source = torch.arange(24).view(4, 6).to(dtype), torch.ones(2, 6).to(dtype)
    for index in (torch.tensor([3, 1]), torch.tensor([3, 1], dtype=torch.int32)):
        there = x.npu()
        if dtype not in (torch.bool, torch.complex64):
            expected = x.index_add(0, index, source)
            assert torch.equal(there.index_add(0, index.npu(), source.npu()).cpu(), expected)
        if index.dtype == torch.int64:
            expected = x.index_copy(0, index, source)
            assert torch.equal(there.index_copy(0, index.npu(), source.npu()).cpu(), expected)
        expected = x.index_fill(0, index.long(), 1)
        assert torch.equal(there.index_fill(0, index.npu(), 1).cpu(), expected)
        there.t().index_fill_(1, index.npu(), 0)
        assert torch.equal(there.cpu(), x.index_fill(0, index.long(), 0))
        assert torch.equal(
            there.index_fill(0, -index.npu(), 1).cpu(),
            x.index_fill(0, index.long(), 0).index_fill(0, -index.long(), 1),
        )
    assert (
        torch.ones((), device="npu").index_add(0, torch.tensor([0]).npu(), torch.ones(()).npu())
        == 2
    )


@pytest.mark.parametrize("operator", ["index_add", "index_copy", "index_fill"])
def test_a_row_that_is_not_there_is_a_device_error(operator):
    x = torch.zeros(4, 3, device="npu")
    for wrong in (4, -5 if operator == "index_fill" else -1, 1 << 40):
        index = torch.tensor([wrong], device="npu")
        value = 1 if operator == "index_fill" else torch.ones(1, 3, device="npu")
        with pytest.raises(RuntimeError, match=rf"\[{operator}\] index {wrong} is out of bounds"):
            getattr(x, operator)(0, index, value)
            torch.npu.synchronize()
    assert x.sum().item() == 0
    with pytest.raises(IndexError, match="dtype int32/int64"):
        x.index_fill_(0, torch.ones(1, device="npu"), 1)
    with pytest.raises(RuntimeError, match="0-dimensional value"):
        x.index_fill_(0, torch.tensor([1], device="npu"), torch.ones(2, device="npu"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_running_products_and_extremes(dtype):
    x = make(dtype, 3, 5, 4)
    for dim in (0, 1, -1):
        check(lambda t, d=dim: t.cumprod(d), x)
        check(lambda t, d=dim: t.transpose(0, 1).cummax(d).values, x)
        check(lambda t, d=dim: t.cummin(d).values, x)
    host = torch.tensor([1, 3, 3, float("nan"), 9, 2]).to(dtype)
    for name in ("cummax", "cummin"):
        got, expected = getattr(host.npu(), name)(0), getattr(host, name)(0)
        assert torch.equal(got.indices.cpu(), expected.indices), name
        assert torch.equal(got.values.cpu().isnan(), expected.values.isnan())
    assert torch.tensor([3, 2, 4]).npu().cumprod(0).tolist() == [3, 6, 24]
    assert torch.tensor([False, True, False]).npu().cummax(0).values.tolist() == [False, True, True]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_sorted_search(dtype, right):
    bounds = torch.tensor([[1, 3, 3, 7], [0, 2, 5, 5]]).to(dtype)
    x = torch.tensor([[0, 1, 3, 4, 9], [5, 2, 2, 6, 0]]).to(dtype)
    for b, v in ((bounds, x), (bounds[0], x), (bounds[0], x[0, 2]), (bounds[:, :0], x)):
        for int32 in (False, True):
            expected = torch.searchsorted(b, v, right=right, out_int32=int32)
            got = torch.searchsorted(b.npu(), v.npu(), right=right, out_int32=int32)
            assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    expected = torch.bucketize(x, bounds[0], right=right)
    assert torch.equal(torch.bucketize(x.npu(), bounds[0].npu(), right=right).cpu(), expected)
    assert torch.searchsorted(bounds[0].npu(), 3, right=right).item() == (3 if right else 1)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = torch.empty_like(bounds[0])
    shuffled[order] = bounds[0]
    got = torch.searchsorted(shuffled.npu(), x[0].npu(), sorter=order.npu(), right=right)
    assert torch.equal(got.cpu(), torch.searchsorted(bounds[0], x[0], right=right))


def test_sorted_search_refuses():
    bounds = torch.arange(4.0, device="npu")
    nan = torch.tensor([float("nan")])
    assert torch.searchsorted(bounds, nan.npu()).item() == 4
    for arguments, message in (
        ({"side": "middle"}, "side can only be"),
        ({"side": "left", "right": True}, "opposites"),
        ({"sorter": torch.zeros(3, dtype=torch.int64).npu()}, "same size"),
        ({"sorter": torch.zeros(4).npu()}, "long dtype"),
        ({"sorter": torch.full((4,), 9).npu()}, "sorter index out of range"),
    ):
        with pytest.raises(RuntimeError, match=message):
            torch.searchsorted(bounds, bounds, **arguments)
            torch.npu.synchronize()


def test_bincount():
    x = torch.tensor([3, 1, 1, 5])
    assert torch.equal(x.npu().bincount().cpu(), x.bincount())
    assert x.npu().bincount(minlength=9).tolist() == x.bincount(minlength=9).tolist()
    for dtype in (torch.float32, torch.float64, torch.int64):
        weights = torch.tensor([1, 2, 3, 4]).to(dtype)
        expected = x.bincount(weights)
        got = x.npu().bincount(weights.npu())
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    assert torch.ones(0, dtype=torch.int64).npu().bincount().tolist() == []
    for wrong in (torch.tensor([-1]), torch.tensor([1.0]), torch.tensor([[1]])):
        with pytest.raises(RuntimeError, match="bincount"):
            wrong.npu().bincount()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_embedding_bag(dtype, mode):
    weight = make(dtype, 7, 5)
    indices, offsets = torch.tensor([1, 6, 1, 3, 0, 2]), torch.tensor([0, 3, 3])
    check(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode), weight, indices, offsets)
    check(lambda w, i, o: F.embedding_bag(i.int(), w, o.int(), mode=mode), weight, indices, offsets)
    check(lambda w, i: F.embedding_bag(i.view(2, 3), w, mode=mode), weight, indices)
    closed = torch.tensor([0, 2, 6])
    check(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, include_last_offset=True),
        weight, indices, closed,
    )  # fmt: skip
    check(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=1), weight, indices, offsets
    )
    if mode == "sum":
        factors = make(dtype, 6, seed=1)
        check(
            lambda w, i, o, f: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=f),
            weight, indices, offsets, factors,
        )  # fmt: skip


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_embedding_bag_gradients_by_frequency(mode):
    def gradient(**options):
        weight = make(torch.float32, 4, 3).detach().npu().requires_grad_()
        bags = torch.tensor([[1, 3, 1], [1, 0, 3]], device="npu")
        F.embedding_bag(bags, weight, mode=mode, **options).square().sum().backward()
        return weight.grad.cpu()

    counts = torch.tensor(
        [1.0, 3.0, 1.0, 2.0]
    )  # torch's own CPU code divides by other rows' counts
    expected = gradient() / counts.unsqueeze(1)
    torch.testing.assert_close(gradient(scale_grad_by_freq=True), expected)


def test_embedding_bag_checks_what_it_is_told():
    weight = torch.ones(7, 5, device="npu")

    def bag(indices, offsets):
        F.embedding_bag(
            torch.tensor(indices).npu(), weight, torch.tensor(offsets).npu(), mode="sum"
        )
        torch.npu.synchronize()

    for indices, offsets, message in (
        ([1, 7], [0], "index 7 is out of range for 7 rows"),
        ([1, -1], [0], "index -1 is out of range"),
        ([1, 2], [1], r"offsets\[0\] has to be 0"),
        ([1, 2], [0, 2, 1], "expected offsets in order"),
        ([1, 2], [0, 3], "expected offsets in order"),
        ([1, 2], [0, -4], "expected offsets in order"),
    ):
        with pytest.raises(RuntimeError, match=message):
            bag(indices, offsets)
    bag([1, 2], [0, 2])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gated_halves(dtype):
    check(lambda t: F.glu(t, 1), make(dtype, 3, 6, 5))
    check(lambda t: F.glu(t.transpose(0, 2)), make(dtype, 4, 6, 5))
    check(F.glu, make(dtype, 0, 6))
    with pytest.raises(RuntimeError, match="must be even"):
        F.glu(torch.ones(3, device="npu"))
