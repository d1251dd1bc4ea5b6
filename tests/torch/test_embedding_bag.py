"""embedding_bag, its gradients and refused arguments."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")


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

    counts = torch.tensor([1.0, 3.0, 1.0, 2.0])  # torch's CPU code divides by other rows' counts
    expected = gradient() / counts.unsqueeze(1)
    torch.testing.assert_close(gradient(scale_grad_by_freq=True), expected)


def test_embedding_bag_checks_its_arguments():
    weight = torch.ones(7, 5, device="npu")

    def bag(indices, offsets):
        F.embedding_bag(
            torch.tensor(indices).npu(), weight, torch.tensor(offsets).npu(), mode="sum"
        )
        torch.npu.synchronize()

    for indices, offsets, message in (
        ([1, 7], [0], r"an index in \[0, 7\), got 7 at 1"),
        ([1, -1], [0], r"an index in \[0, 7\), got -1 at 1"),
        ([1, 2], [1], r"offsets\[0\] has to be 0"),
        ([1, 2], [0, 2, 1], "expected offsets in order"),
        ([1, 2], [0, 3], "expected offsets in order"),
        ([1, 2], [0, -4], "expected offsets in order"),
    ):
        with pytest.raises(RuntimeError, match=message):
            bag(indices, offsets)
    bag([1, 2], [0, 2])
