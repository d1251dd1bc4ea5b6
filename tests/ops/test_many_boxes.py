"""Suppression of so many boxes that they are compared only with those near them."""

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.opdef import all_ops

COUNT = 1500


def _boxes(side: float, *, on_lattice: bool) -> torch.Tensor:
    """Return [COUNT, 5] boxes: some wide, one far, one of everything, some equal, some hostile."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.rand(COUNT, 2, generator=generator) * 300
    sides = torch.rand(COUNT, 2, generator=generator) * side + 1
    boxes = torch.cat([centres - sides / 2, centres + sides / 2], 1)
    boxes[::50, 2:] += 200
    boxes[3] = torch.tensor([1e6, 1e6, 1e6 + 2, 1e6 + 3])
    boxes[400] = torch.tensor([-1e6, -1e6, 1e6, 1e6])
    boxes[700:720] = boxes[699]
    boxes[5, 0], boxes[7, 1] = float("nan"), float("inf")
    boxes[9], boxes[11] = boxes[9].flip(0), torch.tensor([0.0, 0.0, 3e38, 3e38])
    if on_lattice:  # overlaps of exactly a half are common
        boxes = (boxes / 8).round() * 8
    return torch.cat([boxes, torch.rand(COUNT, 1, generator=generator)], 1)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("side", [4.0, 20.0, 150.0])
def test_as_the_reference(side: float, threshold: float) -> None:
    boxes = _boxes(side, on_lattice=threshold == 0.5)
    got = onnxruntime_npu.npu_nms_with_mask(boxes, threshold)
    want = all_ops()["npu_nms_with_mask"].call_reference(boxes, threshold)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    # Beyond the number up to which all are compared.
    assert int(got[2].sum()) > 256 or (side, threshold) in {(150.0, 0.0), (150.0, 0.1), (20.0, 0.0)}


SCORES = {
    "spread": lambda x: x,
    "equal": lambda x: (x * 4).round() / 4,
    "saturated": lambda x: torch.where(x > 0.5, 1 - x * 1e-6, x * 1e-20),
    "nan": lambda x: torch.where(x > 0.9, float("nan"), x - 0.5),
}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("most", [0, 1, 100, COUNT])
def test_choice_by_score(scores: str, most: int) -> None:
    """Ranges of scores with few and with many boxes give what a sort of all gives."""
    rows = _boxes(20.0, on_lattice=False)
    boxes, ranked = rows[:, :4].contiguous(), SCORES[scores](rows[:, 4])
    arguments = boxes, ranked, most, torch.tensor(0.3), torch.tensor(-0.2)
    got = onnxruntime_npu.npu_nms_v4(*arguments)
    want = all_ops()["npu_nms_v4"].call_reference(*arguments)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("count", [1, 7, COUNT])
def test_order_of_scores(count: int) -> None:
    """Boxes apart from each other are chosen by descending score; equal ones stay in order."""
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(count, generator=generator).mul(4).round() / 4  # many are equal
    special = [0.0, -0.0, float("inf"), 1e-45, -1e-45, 3e38, -3e38]
    scores[: len(special)] = torch.tensor(special[:count])
    left = torch.arange(count, dtype=torch.float32)[:, None] * 2
    boxes = torch.cat([left, left, left + 1, left + 1], 1)
    zero, least = torch.zeros(()), torch.full((), float("-inf"))
    chosen, number = onnxruntime_npu.npu_nms_v4(boxes, scores, count, zero, least)
    assert int(number) == count
    assert chosen.tolist() == sorted(range(count), key=lambda i: -scores[i].item())
