"""Pooling and its gradients."""

import onnxruntime_npu.npu as npu
import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pooling(dtype):
    x = make(dtype, 2, 3, 9, 8)
    check(lambda t: F.max_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.max_pool2d(t, (2, 3), (1, 2), (0, 1), dilation=(3, 2), ceil_mode=True), x)
    check(lambda t: F.max_pool1d(t[0], 3), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1), x)
    check(lambda t: F.avg_pool2d(t, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
    check(lambda t: F.avg_pool2d(t, (2, 3), divisor_override=5), x)
    check(lambda t: F.adaptive_avg_pool2d(t, (4, 3)), x)
    check(lambda t: F.adaptive_avg_pool2d(t[0], 1), x)
    channels_last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    check(lambda t: F.max_pool2d(t, 2), channels_last)
    values, places = F.max_pool2d(x.npu(), 2, return_indices=True)
    expected, expected_places = F.max_pool2d(x, 2, return_indices=True)
    assert torch.equal(places.cpu(), expected_places) and torch.equal(values.cpu(), expected)


def test_pooling_of_nan_and_empty_output():
    x = torch.tensor([[[1.0, float("nan"), 3.0, -float("inf")]]], device="npu")
    assert F.max_pool2d(x, (1, 2)).isnan().tolist() == [[[True, False]]]
    with pytest.raises(RuntimeError, match=r"[Oo]utput size is too small"):
        F.max_pool2d(x, 3)
    with pytest.raises(RuntimeError, match=r"two, not negative"):
        torch.ops.aten._adaptive_avg_pool2d(x, [-1, 2])


def _max_pools(x, values, indices):
    """Call both max pools with indices with results of the caller's."""
    aten = torch.ops.aten
    window = aten.max_pool2d_with_indices.out(
        x, [3, 2], [2, 1], [1, 0], [1, 2], out=values[0], indices=indices[0]
    )
    adaptive = aten.adaptive_max_pool2d.out(x, [4, 3], out=values[1], indices=indices[1])
    return [*window, *adaptive]


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("layout", ["dense", "every other", "transposed"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_max_pools_write_the_tensors_that_they_are_given(dtype, layout, rank):
    x = make(torch.float64, 2, 3, 9, 8).detach().mul(10).to(dtype)[: None if rank == 4 else 1]
    x = x if rank == 4 else x[0]

    def room(shape, of, device):
        shape = (*x.shape[:-2], *shape)
        if layout == "every other":
            return torch.full((*shape[:-1], 2 * shape[-1]), 7, dtype=of, device=device)[..., ::2]
        if layout == "transposed":
            return torch.full((*shape[:-2], *shape[:-3:-1]), 7, dtype=of, device=device).mT
        return torch.full(shape, 7, dtype=of, device=device)

    sizes = [(5, 6), (4, 3)]
    expected_values = [room(s, dtype, "cpu") for s in sizes]
    expected_places = [room(s, torch.int64, "cpu") for s in sizes]
    values = [room(s, dtype, "npu") for s in sizes]
    places = [room(s, torch.int64, "npu") for s in sizes]
    expected = _max_pools(x, expected_values, expected_places)
    for got, given, want in zip(
        _max_pools(x.npu(), values, places),
        [values[0], places[0], values[1], places[1]],
        expected,
        strict=True,
    ):
        assert got.data_ptr() == given.data_ptr() and got.stride() == given.stride()
        assert torch.equal(got.cpu(), want)
    if layout == "every other":  # what lies between stays
        for t in (*values, *places):
            whole = torch.as_strided(t, (*t.shape[:-1], 2 * t.shape[-1]), (*t.stride()[:-1], 1))
            assert (whole[..., 1::2] == 7).all()


def test_max_pools_make_no_copies_of_their_results():
    x = torch.randn(2, 8, 64, 64, device="npu")
    values = [torch.empty(2, 8, 32, 62, device="npu"), torch.empty(2, 8, 4, 3, device="npu")]
    places = [torch.empty_like(v, dtype=torch.int64) for v in values]
    before = npu.memory_allocated()
    npu.reset_peak_memory_stats()
    _max_pools(x, values, places)
    assert npu.max_memory_allocated() == before


def test_top_k_of_a_tensor_into_itself_and_into_strides():
    x = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    for largest in (True, False):
        expected = x.topk(40, largest=largest)
        y, places = x.npu(), torch.zeros(40, 6, dtype=torch.int64, device="npu").T
        torch.topk(y, 40, largest=largest, out=(y, places))
        assert torch.equal(y.cpu(), expected.values) and torch.equal(places.cpu(), expected.indices)
