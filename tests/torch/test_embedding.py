"""Embeddings with a largest norm of their rows and with gradients by frequency."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, TOLERANCE, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gradients_by_frequency(dtype):
    places = torch.tensor([[1, 2, 0], [3, 3, 1], [3, 6, 6]])
    options = {"scale_grad_by_freq": True}
    check(lambda w, i: F.embedding(i, w, **options), make(dtype, 7, 5), places)
    check(lambda w, i: F.embedding(i, w, padding_idx=3, **options), make(dtype, 7, 5), places)
    check(lambda w, i: F.embedding(i[:0], w, **options), make(dtype, 7, 5), places)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_are_brought_down_to_a_norm(dtype, norm):
    weight, places = make(dtype, 6, 4).detach(), torch.tensor([[1, 5, 1], [0, 0, 3]])
    weight[3] *= 0.01
    wide = weight.float() if dtype.itemsize == 2 else weight.clone()
    on_npu = weight.npu()
    got = F.embedding(places.npu(), on_npu, max_norm=0.5, norm_type=norm)
    expected = F.embedding(places, wide, max_norm=0.5, norm_type=norm)
    tolerance = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(got.cpu(), expected.to(dtype), **tolerance)
    torch.testing.assert_close(on_npu.cpu(), wide.to(dtype), **tolerance)
    assert torch.equal(on_npu.cpu()[[2, 4]], weight[[2, 4]])


def test_norms_of_bags():
    layers = [torch.nn.EmbeddingBag(5, 3, max_norm=0.1).to(device) for device in ("cpu", "npu")]
    layers[1].load_state_dict(layers[0].state_dict())
    places, offsets = torch.tensor([4, 1, 1, 0]), torch.tensor([0, 3])
    expected, got = (m(places.to(m.weight.device), offsets.to(m.weight.device)) for m in layers)
    torch.testing.assert_close(got.cpu(), expected)
    torch.testing.assert_close(layers[1].weight.cpu(), layers[0].weight)
