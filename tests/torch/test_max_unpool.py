"""Values of max pools written back to where they were."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unpooled(dtype, rank):
    pool, unpool = getattr(F, f"max_pool{rank}d"), getattr(F, f"max_unpool{rank}d")
    x = make(dtype, 2, 3, *(6, 7, 5)[:rank])

    def there_and_back(t):
        values, places = pool(t, 2, return_indices=True)
        return unpool(values, places, 2, output_size=t.shape[-rank:])

    check(there_and_back, x)
    check(lambda t: there_and_back(t[1]), x)
    check(lambda t: there_and_back(t.transpose(-1, 0)), make(dtype, *(4, 5, 6, 3, 2)[-rank - 2 :]))


def test_more_than_the_pooled_size():
    values, places = torch.tensor([[[[5.0, 7.0]]]]), torch.tensor([[[[3, 0]]]])
    for size in ([2, 4], [3, 5]):
        got = torch.ops.aten.max_unpool2d(values.npu(), places.npu(), size)
        assert torch.equal(got.cpu(), torch.ops.aten.max_unpool2d(values, places, size))
    out = torch.empty(0, device="npu")
    torch.ops.aten.max_unpool2d.out(values.npu(), places.npu(), [2, 4], out=out)
    assert out.flatten().tolist() == [7, 0, 0, 5, 0, 0, 0, 0]


def test_refused_arguments():
    aten = torch.ops.aten
    x, places = torch.ones(1, 1, 2, 2, device="npu"), torch.zeros(1, 1, 2, 2, device="npu").long()
    with pytest.raises(RuntimeError, match="should be type int64 but got: Int"):
        aten.max_unpool2d(x, places.int(), [4, 4])
    with pytest.raises(RuntimeError, match="expected 2 elements in output_size"):
        aten.max_unpool2d(x, places, [4])
    with pytest.raises(RuntimeError, match="expected indices of the input's shape"):
        aten.max_unpool2d(x, places[..., :1], [4, 4])
    with pytest.raises(RuntimeError, match="expected an input of 4 or 5 dimensions"):
        aten.max_unpool3d(x[0], places[0], [4, 4, 4], [2, 2, 2], [0, 0, 0])
    volume = x[None], places[None], [4, 4, 4]
    with pytest.raises(RuntimeError, match="expected strides greater than zero"):
        aten.max_unpool3d(*volume, [2, 0, 2], [0, 0, 0])


def test_an_index_beyond_the_image_is_an_error():
    x = torch.ones(1, 1, 1, 1, device="npu")
    F.max_unpool2d(x, torch.full((1, 1, 1, 1), 16, device="npu"), 4)
    with pytest.raises(RuntimeError, match="expected an index"):
        torch.npu.synchronize()
