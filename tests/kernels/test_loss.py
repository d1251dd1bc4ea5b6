"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss against torch's, in double."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx_nodes import Node, assert_close, dtype_of, random, run_npu

FLOATS = ["float64", "float32", "float16", "bfloat16"]
SHAPES = [(7, 5), (3, 4, 6), (2, 3, 2, 5), (1, 300)]


def wide(array: np.ndarray | None) -> torch.Tensor | None:
    return None if array is None else torch.from_numpy(array.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses(reduction, shape, full, dtype) -> None:
    rng = np.random.default_rng(1)
    x, classes = random(rng, dtype, *shape), shape[1]
    target = rng.integers(0, classes, (shape[0], *shape[2:]))
    weight = random(rng, dtype, classes, low=0.5, high=2) if full else None
    if full:
        target.ravel()[::3] = -1
        target = target.astype(np.int32)
    how = {"reduction": reduction} | ({"ignore_index": -1} if full else {})
    given = (
        torch.from_numpy(target.astype(np.int64)),
        wide(weight),
        None,
        how.get("ignore_index", -100),
    )
    # Sums cancel: an error of one rounding of the largest term, 8, for each of up to 20 terms.
    unit = {"float64": 2.0**-48, "float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[
        dtype
    ]
    for op, loss in [
        ("NegativeLogLikelihoodLoss", torch.nn.functional.nll_loss),
        ("SoftmaxCrossEntropyLoss", torch.nn.functional.cross_entropy),
    ]:
        expected = loss(wide(x), *given, reduction=reduction).numpy()
        opset = 22 if op.startswith("N") else 13
        got = run_npu(op, [x, target, weight], opset=opset, **how)[0]
        assert got.dtype == dtype_of(dtype) and got.shape == expected.shape
        # The mean is NaN where all positions are ignored, those of the last shape.
        near = unit * np.fmax(8.0, np.abs(expected).max())
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


@pytest.mark.parametrize("dtype", FLOATS)
def test_log_probabilities(dtype) -> None:
    rng = np.random.default_rng(2)
    x, labels = random(rng, dtype, 3, 5, 4), rng.integers(0, 5, (3, 4))
    loss, got = run_npu("SoftmaxCrossEntropyLoss", [x, labels], 2, opset=13)
    expected = torch.log_softmax(wide(x), 1).numpy()
    assert_close(got, expected, dtype, factor=4)
    alone = run_npu("SoftmaxCrossEntropyLoss", [x, labels], 1, opset=13)[0]
    assert loss.astype(np.float32) == alone.astype(np.float32)


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_wrong_arguments_of_losses_are_refused(op) -> None:
    x, target, weight = np.ones((3, 4), np.float32), np.zeros(3, np.int64), np.ones(4, np.float32)
    node = Node(op, [x, target, weight], opset=13)
    for label in (-1, 4, 2**62, -(2**62)):
        with pytest.raises(Exception, match="classes from 0 to 3"):
            node(x, target + label, weight)
    with pytest.raises(Exception, match="a class for each position"):
        node(x, target[:2], weight)
    with pytest.raises(Exception, match="a weight for each class"):
        node(x, target, weight[:3])
    with pytest.raises(Exception, match=r"an input \[N, C"):
        node(x[0], target, weight)
    with pytest.raises(Exception, match="reduction mean, sum or none, got 'most'"):
        run_npu(op, [x, target], opset=13, reduction="most")
    assert np.isnan(node(x[:0], target[:0], weight)[0])
    assert run_npu(op, [x[:0], target[:0]], opset=13, reduction="none")[0].shape == (0,)
