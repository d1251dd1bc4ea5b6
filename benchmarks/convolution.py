#!/usr/bin/env python3
"""Convolutions of ResNet-50 and MobileNet against peers on this machine, interleaved in one run.

Every sample convolves one batch of images with eight weights of a shape, in one session. Peers:
onnxruntime's CPUExecutionProvider and torch's conv2d (oneDNN). Float32 with a bias; results are
compared with float64 before anything is timed.
"""

from __future__ import annotations

import functools
import time
from typing import Any, NamedTuple

import harness
import numpy as np

LAYERS = 8
SEED = 0
TOLERANCES = {"float32": 2e-6}  # sums of up to 4608 products in float32


class Shape(NamedTuple):
    """Of a convolution with padding that keeps the size, but for its stride."""

    channels: int
    out: int
    size: int
    kernel: int
    stride: int = 1
    depthwise: bool = False

    @property
    def label(self) -> str:
        kind = "depthwise " if self.depthwise else ""
        return (
            f"{kind}{self.kernel}x{self.kernel}/{self.stride} {self.channels}-{self.out} "
            f"{self.size}x{self.size}"
        )

    @property
    def weight(self) -> tuple[int, int, int, int]:
        return self.out, 1 if self.depthwise else self.channels, self.kernel, self.kernel

    def flops(self, batch: int) -> float:
        of_output = 2 * np.prod(self.weight[1:])
        return float(batch * self.out * (self.size // self.stride) ** 2 * of_output)


SHAPES = [
    Shape(3, 64, 224, 7, 2),
    Shape(64, 64, 56, 1),
    Shape(64, 64, 56, 3),
    Shape(64, 256, 56, 1),
    Shape(256, 128, 56, 1),
    Shape(128, 128, 56, 3, 2),
    Shape(128, 128, 28, 3),
    Shape(512, 128, 28, 1),
    Shape(256, 256, 14, 3),
    Shape(1024, 256, 14, 1),
    Shape(512, 512, 7, 3),
    Shape(2048, 512, 7, 1),
    Shape(96, 96, 56, 3, depthwise=True),
    Shape(96, 96, 112, 3, 2, depthwise=True),
    Shape(576, 576, 14, 3, depthwise=True),
    Shape(960, 960, 7, 5, depthwise=True),
]


def images_of(shape: Shape, batch: int) -> np.ndarray:
    numbers = np.random.default_rng(SEED)
    return numbers.standard_normal((batch, shape.channels, shape.size, shape.size), np.float32)


def weights_of(shape: Shape, layer: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng([SEED + 1, layer])
    depth = np.float32(np.prod(shape.weight[1:]) ** 0.5)
    weight = numbers.standard_normal(shape.weight, np.float32) / depth
    return weight, numbers.standard_normal(shape.out, np.float32)


class Layers:
    """`time(shape, batch)` returns the seconds of one pass; `shape` is a number of SHAPES."""

    def __init__(self) -> None:
        self.case: tuple[int, int] | None = None

    def bind(self, shape: Shape, batch: int) -> None:
        """Prepare calls of this shape."""
        raise NotImplementedError

    def once(self) -> None:
        """Convolve with every weight, and wait."""
        raise NotImplementedError

    def last(self) -> np.ndarray:
        """The result of the last layer."""
        raise NotImplementedError

    def error(self, number: int, batch: int) -> np.ndarray:
        """The relative error of the last layer against float64."""
        import torch

        self.time(number, batch)
        shape = SHAPES[number]
        weight, bias = (torch.from_numpy(w).double() for w in weights_of(shape, LAYERS - 1))
        x = torch.from_numpy(images_of(shape, batch)).double()
        expected = convolve(shape, x, weight, bias).numpy()
        difference = np.linalg.norm(self.last() - expected) / np.linalg.norm(expected)
        return np.array([difference], np.float32)

    def time(self, number: int, batch: int) -> float:
        """Seconds of one pass; the first one of a shape is not counted."""
        if self.case != (number, batch):
            self.case = (number, batch)
            self.bind(SHAPES[number], batch)
            self.once()
        begin = time.perf_counter()
        self.once()
        return time.perf_counter() - begin


def convolve(shape: Shape, x: Any, weight: Any, bias: Any) -> Any:
    """torch's convolution of this shape."""
    import torch

    groups = shape.channels if shape.depthwise else 1
    padding = shape.kernel // 2
    return torch.nn.functional.conv2d(x, weight, bias, shape.stride, padding, groups=groups)


class Session(Layers):
    """A session of one provider."""

    def __init__(self, provider: str, threads: int) -> None:
        super().__init__()
        self.provider, self.threads = provider, threads
        self.device = "cpu" if provider == "CPUExecutionProvider" else "npu"

    def bind(self, shape: Shape, batch: int) -> None:
        import onnxruntime as ort
        from onnx import TensorProto, helper, numpy_helper
        from onnxruntime_npu import ortvalue_from_numpy
        from sessions import session_of

        x = images_of(shape, batch)
        side = shape.size // shape.stride
        nodes, constants = [], []
        for i in range(LAYERS):
            for name, value in zip((f"w{i}", f"b{i}"), weights_of(shape, i), strict=True):
                constants.append(numpy_helper.from_array(value, name))
            nodes.append(
                helper.make_node(
                    "Conv", ["x", f"w{i}", f"b{i}"], [f"y{i}"], strides=[shape.stride] * 2,
                    pads=[shape.kernel // 2] * 4, group=shape.channels if shape.depthwise else 1,
                )
            )  # fmt: skip

        def info(name: str, dims: tuple[int, ...]) -> Any:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

        result = (batch, shape.out, side, side)
        outputs = [info(f"y{i}", result) for i in range(LAYERS)]
        graph = helper.make_graph(nodes, "layers", [info("x", x.shape)], outputs, constants)
        options = {"enable_npu_graph": "1"} if self.device == "npu" else {}
        self.session = session_of(graph, self.provider, self.threads, options)
        self.binding = self.session.io_binding()
        of_numpy = ortvalue_from_numpy
        if self.device == "cpu":
            of_numpy = ort.OrtValue.ortvalue_from_numpy
        self.binding.bind_ortvalue_input("x", of_numpy(x))
        make = ort.OrtValue.ortvalue_from_shape_and_type
        for i in range(LAYERS):
            y = make(list(result), TensorProto.FLOAT, self.device)
            self.binding.bind_ortvalue_output(f"y{i}", y)

    def once(self) -> None:
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def last(self) -> np.ndarray:
        from onnxruntime_npu import ortvalue_to_numpy

        return ortvalue_to_numpy(self.binding.get_outputs()[-1])


class Torch(Layers):
    """torch on the CPU."""

    def __init__(self, threads: int) -> None:
        import torch

        super().__init__()
        torch.set_num_threads(threads)

    def bind(self, shape: Shape, batch: int) -> None:
        import torch

        self.shape, self.x = shape, torch.from_numpy(images_of(shape, batch))
        pairs = (weights_of(shape, i) for i in range(LAYERS))
        self.weights = [tuple(torch.from_numpy(w) for w in pair) for pair in pairs]

    def once(self) -> None:
        import torch

        with torch.inference_mode():
            self.results = [convolve(self.shape, self.x, *pair) for pair in self.weights]

    def last(self) -> np.ndarray:
        return self.results[-1].numpy()


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", list(TOLERANCES), rounds=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="images of a batch")
    arguments = harness.parse_arguments(parser)
    for dtype in arguments.dtypes:
        session = functools.partial(Session, threads=arguments.threads)
        specs = {
            "npu": harness.Spec(functools.partial(session, "NPUExecutionProvider"), ours=True),
            "ort": harness.Spec(functools.partial(session, "CPUExecutionProvider")),
            "torch": harness.Spec(functools.partial(Torch, arguments.threads)),
        }
        calls = [(number, batch) for batch in arguments.batches for number in range(len(SHAPES))]
        cases = [
            harness.Case(
                f"N={batch} {SHAPES[number].label}",
                1e-9 * LAYERS * SHAPES[number].flops(batch), "GFLOP", "time", (number, batch),
            )
            for number, batch in calls
        ]  # fmt: skip
        check = functools.partial(harness.check_errors, tolerance=TOLERANCES[dtype], calls=calls)
        harness.measure(arguments, f"convolution-{dtype}", specs, cases, check)


if __name__ == "__main__":
    main()
