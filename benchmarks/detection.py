#!/usr/bin/env python3
"""Suppression, RoiAlign and LSTM, of detectors and recognisers, against peers in one run.

Peers: onnxruntime's CPUExecutionProvider with the standard operator of the same meaning, and torch:
its LSTM, and the usual formulations in torch of the others. torchvision has kernels for these and
is a peer with --torchvision PYTHON. PyPI's does not load beside a torch without CUDA, so that it
needs an environment of its own, of gigabytes: pip install torch==2.14.1 torchvision==0.29.1 tqdm.
Results are compared before anything is timed.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import harness
import numpy as np

SEED = 0
OVERLAP = 0.5
TOLERANCE = 1e-5  # peers locate the samples of regions in float32; numbers of boxes are equal


@dataclass(frozen=True)
class Node:
    """A node: inputs that are fed, constants after them, names of results, how these are read."""

    op_type: str
    inputs: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    read: Callable[[list[np.ndarray]], np.ndarray] = lambda results: results[0]


class Suppression:
    """Boxes around some objects, as a region proposal network gives them."""

    def __init__(self, count: int) -> None:
        numbers = np.random.default_rng(SEED)
        objects = numbers.uniform(0, 1000, (count // 50, 4)) * [1, 1, 0.2, 0.2] + [0, 0, 10, 10]
        of_object = objects[numbers.integers(0, len(objects), count)]
        x, y, width, height = (of_object + numbers.normal(0, 4, (count, 4))).T
        width, height = np.maximum(width, 4), np.maximum(height, 4)
        corners = [y - height / 2, x - width / 2, y + height / 2, x + width / 2]
        self.boxes = np.stack(corners, 1).astype(np.float32)
        self.scores = (numbers.permutation(count) / np.float32(count)).astype(np.float32)

    def ours(self) -> Node:
        return Node(
            "NPUNmsV4",
            {"boxes": self.boxes, "scores": self.scores},
            {"iou": np.array(OVERLAP, np.float32), "least": np.array(-1, np.float32)},
            ("indices", "count"),
            {"max_output_size": float(len(self.scores))},
            lambda results: results[0][: results[1]].astype(np.float32),
        )

    def standard(self) -> Node:
        return Node(
            "NonMaxSuppression",
            {"boxes": self.boxes[None], "scores": self.scores[None, None]},
            {"most": np.array([len(self.scores)]), "iou": np.array([OVERLAP], np.float32)},
            ("indices",),
            read=lambda results: results[0][:, 2].astype(np.float32),
        )

    def torch(self) -> Callable[[], Any]:
        import torch

        boxes, scores = torch.from_numpy(self.boxes), torch.from_numpy(self.scores)

        def run() -> Any:
            order = scores.argsort(descending=True)
            low, high, chosen = boxes[order, :2], boxes[order, 2:], []
            areas = (high - low).prod(1)
            while len(order):
                chosen.append(order[0])
                sides = torch.minimum(high[0], high) - torch.maximum(low[0], low)
                both = sides.clamp(min=0).prod(1)
                stay = both / (areas[0] + areas - both) <= OVERLAP
                stay[0] = False
                order, low, high, areas = order[stay], low[stay], high[stay], areas[stay]
            return torch.stack(chosen).float()

        return run

    def torchvision(self) -> Callable[[], Any]:
        import torch
        import torchvision

        boxes, scores = torch.from_numpy(self.boxes), torch.from_numpy(self.scores)
        return lambda: torchvision.ops.nms(boxes, scores, OVERLAP).float()


class RoiAlign:
    """Regions of a feature map of a detector, as its head reads them."""

    SCALE, BINS, SAMPLES = 1 / 16, 7, 2

    def __init__(self, channels: int, height: int, width: int, count: int) -> None:
        numbers = np.random.default_rng(SEED)
        self.features = numbers.standard_normal((1, channels, height, width), np.float32)
        corner = numbers.uniform(0, 0.7, (count, 2)) * [16 * width, 16 * height]
        sides = numbers.uniform(16, 300, (count, 2))
        self.boxes = np.concatenate([corner, corner + sides], 1).astype(np.float32)

    def ours(self) -> Node:
        rois = np.concatenate([np.zeros_like(self.boxes[:, :1]), self.boxes], 1)
        sizes = {"spatial_scale": self.SCALE, "sample_num": self.SAMPLES, "roi_end_mode": 0}
        sizes |= {"pooled_height": self.BINS, "pooled_width": self.BINS}
        return Node("NPURoiAlign", {"features": self.features, "rois": rois}, {}, ("y",), sizes)

    def standard(self) -> Node:
        sizes = {"spatial_scale": self.SCALE, "sampling_ratio": self.SAMPLES}
        sizes |= {"output_height": self.BINS, "output_width": self.BINS}
        return Node(
            "RoiAlign",
            {"features": self.features, "rois": self.boxes},
            {"images": np.zeros(len(self.boxes), np.int64)},
            ("y",),
            {**sizes, "coordinate_transformation_mode": "output_half_pixel"},
        )

    def torch(self) -> Callable[[], Any]:
        import torch

        features, boxes = torch.from_numpy(self.features)[0], torch.from_numpy(self.boxes)
        channels, height, width = features.shape
        count = self.BINS * self.SAMPLES

        def along(low: Any, high: Any, size: int) -> tuple[Any, Any, Any, Any]:
            """Return positions before and after each sample, how far between, and what counts."""
            length = ((high - low) * self.SCALE).clamp(min=1)[:, None]
            place = low[:, None] * self.SCALE + (torch.arange(count) + 0.5) / count * length
            counts = (place >= -1) & (place <= size)
            place = place.clamp(0, size - 1)
            before = place.long()
            return before, (before + 1).clamp(max=size - 1), place - before, counts

        def run() -> Any:
            x1, y1, x2, y2 = boxes.unbind(1)
            above, below, down, rows = along(y1, y2, height)
            left, right, across, columns = along(x1, x2, width)
            flat = features.flatten(1)
            down, across = down[:, :, None], across[:, None]
            total = 0
            for row, by_row in ((above, 1 - down), (below, down)):
                for column, by_column in ((left, 1 - across), (right, across)):
                    index = row[:, :, None] * width + column[:, None]
                    weight = by_row * by_column * (rows[:, :, None] & columns[:, None])
                    total = total + flat[:, index] * weight
            shape = channels, len(boxes), self.BINS, self.SAMPLES, self.BINS, self.SAMPLES
            return total.reshape(shape).mean((3, 5)).transpose(0, 1)

        return run

    def torchvision(self) -> Callable[[], Any]:
        import torch
        import torchvision

        images = np.zeros_like(self.boxes[:, :1])
        rois = torch.from_numpy(np.concatenate([images, self.boxes], 1))
        features, size = torch.from_numpy(self.features), (self.BINS, self.BINS)
        sampling = self.SCALE, self.SAMPLES
        return lambda: torchvision.ops.roi_align(features, rois, size, *sampling)


class Lstm:
    """One direction of a layer over a batch of sequences."""

    def __init__(self, steps: int, batch: int, size: int) -> None:
        numbers = np.random.default_rng(SEED)
        self.x = numbers.standard_normal((steps, batch, size), np.float32)
        # Columns of the gates i, f, j, o: the input's, then the hidden state's.
        self.weight = numbers.standard_normal((2 * size, 4 * size), np.float32) / size**0.5
        self.bias = numbers.standard_normal(4 * size, np.float32)
        self.size, self.state = size, np.zeros((1, batch, size), np.float32)

    def ours(self) -> Node:
        flags = dict.fromkeys(("bidirectional", "batch_first", "flagSeq", "direction", "train"), 0)
        constants = {"weight": self.weight, "bias": self.bias, "mask": np.zeros(1, np.float32)}
        return Node(
            "NPULstm",
            {"x": self.x},
            {**constants, "h": self.state, "c": self.state},
            ("y",),
            {**flags, "has_biases": 1, "num_layers": 1, "dropout": 0.0},
        )

    def standard(self) -> Node:
        def gates(columns: np.ndarray) -> np.ndarray:
            i, f, j, o = np.split(columns, 4, -1)
            return np.ascontiguousarray(np.concatenate([i, o, f, j], -1).T)[None]

        bias = np.concatenate([gates(self.bias), np.zeros((1, 4 * self.size), np.float32)], 1)
        weights = {"w": gates(self.weight[: self.size]), "r": gates(self.weight[self.size :])}
        return Node(
            "LSTM",
            {"x": self.x},
            {**weights, "bias": bias},
            ("y",),
            {"hidden_size": self.size},
            lambda results: results[0][:, 0],
        )

    def torch(self) -> Callable[[], Any]:
        import torch

        layer = torch.nn.LSTM(self.size, self.size)
        given = {
            "weight_ih_l0": self.weight[: self.size].T,
            "weight_hh_l0": self.weight[self.size :].T,
            "bias_ih_l0": self.bias,
            "bias_hh_l0": np.zeros_like(self.bias),
        }
        layer.load_state_dict({name: torch.from_numpy(v.copy()) for name, v in given.items()})
        x = torch.from_numpy(self.x)
        return lambda: layer(x)[0]

    def torchvision(self) -> Callable[[], Any]:
        """Return the LSTM of the torch that torchvision is installed with."""
        return self.torch()


# Each with the nodes of its session, as a detector has one for each level of its pyramid, and the
# runs of a sample.
CASES: dict[str, tuple[Callable[[], Any], int, int]] = {
    "nms 1k boxes": (functools.partial(Suppression, 1000), 5, 20),
    "nms 100k boxes": (functools.partial(Suppression, 100_000), 1, 1),
    "roi_align 256x50x68, 256 regions": (functools.partial(RoiAlign, 256, 50, 68, 256), 1, 1),
    "lstm 64 steps, batch 1, 256": (functools.partial(Lstm, 64, 1, 256), 1, 10),
    "lstm 64 steps, batch 16, 256": (functools.partial(Lstm, 64, 16, 256), 1, 5),
}


class Peer(ABC):
    """One case at a time; `time` returns the seconds of its runs."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.name = ""

    @abstractmethod
    def load(self, case: Any, nodes: int) -> None:
        """Prepare runs of another case."""

    @abstractmethod
    def once(self) -> None:
        """Run its nodes, and wait."""

    @abstractmethod
    def last(self) -> np.ndarray:
        """Return the result of the last node in float32."""

    def result(self, name: str) -> np.ndarray:
        """Return the result of a case."""
        self.time(name, 1)
        return self.last()

    def time(self, name: str, runs: int) -> float:
        """Seconds of the runs; the first one of a case is not counted."""
        if self.name != name:
            self.name = name
            make, nodes, _ = CASES[name]
            self.load(make(), nodes)
            self.once()
        begin = time.perf_counter()
        for _ in range(runs):
            self.once()
        return time.perf_counter() - begin


class Torch(Peer):
    """torch eager."""

    def load(self, case: Any, nodes: int) -> None:
        import torch

        torch.set_num_threads(self.threads)
        self.run, self.nodes = self.call_of(case), nodes

    def call_of(self, case: Any) -> Callable[[], Any]:
        """Return what a run calls."""
        run: Callable[[], Any] = case.torch()
        return run

    def once(self) -> None:
        import torch

        with torch.inference_mode():
            for _ in range(self.nodes):
                self.result_of_run = self.run()

    def last(self) -> np.ndarray:
        return self.result_of_run.numpy()


class Torchvision(Torch):
    """torchvision's kernels, in an environment with a torch that they load beside."""

    def call_of(self, case: Any) -> Callable[[], Any]:
        run: Callable[[], Any] = case.torchvision()
        return run


class Session(Peer):
    """A session; what is fed and what it gives stay in the provider's memory."""

    def __init__(self, provider: str, threads: int) -> None:
        super().__init__(threads)
        self.provider = provider
        self.device = "cpu" if provider == "CPUExecutionProvider" else "npu"

    def load(self, case: Any, nodes: int) -> None:
        import onnxruntime as ort
        from onnx import helper, numpy_helper
        from onnxruntime_npu import ortvalue_from_numpy
        from sessions import session_of

        ours = self.device == "npu"
        self.node: Node = case.ours() if ours else case.standard()
        node = self.node
        made, feeds = [], {}
        self.outputs = [f"{name}{i}" for i in range(nodes) for name in node.outputs]
        for i in range(nodes):
            # Inputs of their own, or onnxruntime would merge the nodes.
            own = {f"{name}{i}": value for name, value in node.inputs.items()}
            feeds |= own
            made.append(
                helper.make_node(
                    node.op_type,
                    [*own, *node.constants],
                    [f"{name}{i}" for name in node.outputs],
                    domain="npu" if ours else "",
                    **node.attributes,
                )
            )
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        constants = [numpy_helper.from_array(v, n) for n, v in node.constants.items()]
        graph = helper.make_graph(made, "nodes", infos, outputs, constants)
        self.session = session_of(graph, self.provider, self.threads)
        self.binding = self.session.io_binding()
        of_numpy = ortvalue_from_numpy if ours else ort.OrtValue.ortvalue_from_numpy
        for name, value in feeds.items():
            self.binding.bind_ortvalue_input(name, of_numpy(value))

    def once(self) -> None:
        self.binding.clear_binding_outputs()
        for name in self.outputs:
            self.binding.bind_output(name, self.device)
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def last(self) -> np.ndarray:
        from onnxruntime_npu import ortvalue_to_numpy

        results = [ortvalue_to_numpy(v) for v in self.binding.get_outputs()]
        return self.node.read(results[-len(self.node.outputs) :])


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=7)
    parser.add_argument("--torchvision", metavar="PYTHON", help="of an environment that has it")
    arguments = harness.parse_arguments(parser)
    session = functools.partial(Session, threads=arguments.threads)
    specs = {
        "npu": harness.Spec(functools.partial(session, "NPUExecutionProvider"), ours=True),
        "ort": harness.Spec(functools.partial(session, "CPUExecutionProvider")),
        "torch": harness.Spec(functools.partial(Torch, arguments.threads)),
    }
    if arguments.torchvision:
        make = functools.partial(Torchvision, arguments.threads)
        specs["torchvision"] = harness.Spec(make, python=arguments.torchvision)
    cases = [
        harness.Case(name, nodes * runs, "calls", "time", (name, runs))
        for name, (_, nodes, runs) in CASES.items()
    ]
    compare = functools.partial(
        harness.compare,
        method="result",
        calls=[(name,) for name in CASES],
        tolerance=TOLERANCE,
    )
    harness.measure(arguments, "detection-float32", specs, cases, compare)


if __name__ == "__main__":
    main()
