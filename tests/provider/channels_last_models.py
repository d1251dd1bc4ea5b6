"""Models of convolutions whose values between them have their channels last, against the CPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from fusion_models import fused_nodes, model_of, node, without_optimizations
from provider_models import CPU, npu_session

PREFIX = "npu.channels_last:"
RNG = np.random.default_rng(20)


def array(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def weight(out: int, *depth: int) -> np.ndarray:
    """Of a convolution whose results are about as large as its inputs."""
    return array(out, *depth) / np.float32(np.prod(depth) ** 0.5)


def chained(session: ort.InferenceSession) -> set[str]:
    """The nodes that read or write channels last."""
    return {name for name, into in fused_nodes(session).items() if into.startswith(PREFIX)}


def check(model: bytes, *feeds: dict[str, np.ndarray], **settings: str) -> set[str]:
    """Compares with the CPU provider: values of a few units that are sums of up to 2,000 products
    in another order, through a few layers. Returns the nodes with channels last.
    """
    session = npu_session(model, without_optimizations(), **settings)
    cpu = ort.InferenceSession(model, without_optimizations(), providers=[CPU])
    for feed in feeds:
        for got, expected in zip(session.run(None, feed), cpu.run(None, feed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
            assert expected.size == 0 or np.ptp(expected) > 0.1
    return chained(session)


def between(shape, middle: list[onnx.NodeProto], constants, out: int, dynamic=False) -> bytes:
    """A 1 × 1 convolution to a, `middle` from a to m of `out` channels, one from m to y."""
    nodes = [node("Conv", "x first", "a"), *middle, node("Conv", "m last", "y")]
    channels = next(v for n, v in constants.items() if n == "channels")
    constants = {n: v for n, v in constants.items() if n != "channels"}
    constants |= {"first": weight(channels, shape[1], 1, 1), "last": weight(5, out, 1, 1)}
    return model_of(nodes, {"x": np.empty(shape, np.float32)}, constants, dynamic=dynamic, opset=22)
