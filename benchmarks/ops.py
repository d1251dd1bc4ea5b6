#!/usr/bin/env python3
"""Norms, rotary embedding and activations against torch eager, interleaved in one run.

Every sample runs an operator over several inputs, like the layers of a model, in a decode step and
in a prefill. Ours: one session with one node per layer, outputs on the device. Results are compared
before anything is timed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np

HIDDEN, INNER, HEADS, SIZE = 4096, 11008, 32, 128
ROWS = {"decode": 1, "prefill": 512}
LAYERS = {"decode": 32, "prefill": 4}
SEED = 0
# Both compute in float32 and round once; torch's rotary also rounds its products.
TOLERANCES = {"float32": 1e-6, "bfloat16": 5e-3}


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _functional(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        import torch

        return getattr(torch.nn.functional, name)(*arguments, **keywords)

    return call


@dataclass(frozen=True)
class Case:
    """A node: the shape of its first input by the number of rows, and of the constants."""

    op_type: str
    shape: Callable[[int], tuple[int, ...]]
    constants: Callable[[int], Sequence[tuple[int, ...]]]
    attributes: dict[str, Any]
    torch: Callable[..., Any]  # applied to the same tensors
    outputs: int = 1


CASES = {
    "rms_norm": Case(
        "NPURmsNorm",
        lambda rows: (rows, HIDDEN),
        lambda rows: [(HIDDEN,)],
        {"epsilon": 1e-6},
        lambda x, gamma: _functional("rms_norm")(x, (HIDDEN,), gamma, 1e-6),
        outputs=2,
    ),
    "layer_norm": Case(
        "NPULayerNormEval",
        lambda rows: (rows, HIDDEN),
        lambda rows: [(HIDDEN,), (HIDDEN,)],
        {"normalized_shape": [HIDDEN], "eps": 1e-5},
        lambda x, gamma, beta: _functional("layer_norm")(x, (HIDDEN,), gamma, beta, 1e-5),
    ),
    "swiglu": Case(
        "NPUSwiGlu",
        lambda rows: (rows, 2 * INNER),
        lambda rows: [],
        {"dim": -1},
        lambda x: _functional("silu")(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    ),
    "gelu": Case(
        "NPUGeluV2",
        lambda rows: (rows, INNER),
        lambda rows: [],
        {"approximate": "none"},
        _functional("gelu"),
    ),
    "silu": Case(
        "NPUSilu",
        lambda rows: (rows, INNER),
        lambda rows: [],
        {},
        _functional("silu"),
    ),
    "rotary": Case(
        "NPURotaryMul",
        lambda rows: (1, rows, HEADS, SIZE),
        lambda rows: [(1, rows, 1, SIZE), (1, rows, 1, SIZE)],
        {"rotary_mode": "half"},
        _rotate,
    ),
}


def _tensors(case: Case, rows: int, layers: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the inputs of every layer, and the constants that all of them share."""
    generator = np.random.default_rng(SEED)

    def make(shape: tuple[int, ...]) -> np.ndarray:
        return generator.standard_normal(shape, np.float32)

    return [make(case.shape(rows)) for _ in range(layers)], [make(s) for s in case.constants(rows)]


class Peer:
    """One case at a time; `time` returns the seconds of `calls` passes over its layers."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.dtype, self.threads = dtype, threads
        self.loaded: tuple[str, str] | None = None

    def _load(self, name: str, phase: str) -> None:
        if self.loaded != (name, phase):
            self.loaded = (name, phase)
            self.load(CASES[name], ROWS[phase], LAYERS[phase])
            self.once()

    def load(self, case: Case, rows: int, layers: int) -> None:
        """Create the tensors of another case."""
        raise NotImplementedError

    def once(self) -> None:
        """Run every layer, and wait."""
        raise NotImplementedError

    def first(self) -> np.ndarray:
        """Return the result of the first layer in float32."""
        raise NotImplementedError

    def result(self, name: str, phase: str) -> np.ndarray:
        """Run a case and return the result of its first layer."""
        self._load(name, phase)
        return self.first()

    def time(self, name: str, phase: str, calls: int) -> float:
        """Seconds of `calls` passes; the first one of a case is not counted."""
        self._load(name, phase)
        begin = time.perf_counter()
        for _ in range(calls):
            self.once()
        return time.perf_counter() - begin


class Torch(Peer):
    """torch eager."""

    def load(self, case: Case, rows: int, layers: int) -> None:
        import torch

        torch.set_num_threads(self.threads)
        inputs, constants = _tensors(case, rows, layers)
        to = functools.partial(torch.Tensor.to, dtype=getattr(torch, self.dtype))
        self.inputs = [to(torch.from_numpy(x)) for x in inputs]
        self.constants = [to(torch.from_numpy(c)) for c in constants]
        self.function = case.torch

    def once(self) -> None:
        import torch

        with torch.inference_mode():
            for x in self.inputs:
                self.last = self.function(x, *self.constants)

    def first(self) -> np.ndarray:
        return self.function(self.inputs[0], *self.constants).float().numpy()


class Npu(Peer):
    """A session with one node per layer, inputs and outputs in the device's memory."""

    def load(self, case: Case, rows: int, layers: int) -> None:
        import onnx
        from onnx import helper
        from onnxruntime_npu import ortvalue_from_numpy
        from sessions import numpy_dtype, session_of

        numpy_type = numpy_dtype(self.dtype)
        element = helper.np_dtype_to_tensor_dtype(numpy_type)
        inputs, constants = (
            [t.astype(numpy_type) for t in group] for group in _tensors(case, rows, layers)
        )
        names = [f"constant{i}" for i in range(len(constants))]
        nodes = [
            helper.make_node(
                case.op_type,
                [f"x{i}", *names],
                [f"y{i}", *[f"unused{i}_{j}" for j in range(1, case.outputs)]],
                domain="npu",
                **case.attributes,
            )
            for i in range(layers)
        ]
        graph = helper.make_graph(
            nodes,
            "layers",
            [
                helper.make_tensor_value_info(f"x{i}", element, x.shape)
                for i, x in enumerate(inputs)
            ],
            [helper.make_tensor_value_info(f"y{i}", element, None) for i in range(layers)],
            [onnx.numpy_helper.from_array(c, n) for c, n in zip(constants, names, strict=True)],
        )
        self.session = session_of(graph, "NPUExecutionProvider")
        self.binding = self.session.io_binding()
        for i, x in enumerate(inputs):
            self.binding.bind_ortvalue_input(f"x{i}", ortvalue_from_numpy(x))
            self.binding.bind_output(f"y{i}", "npu")

    def once(self) -> None:
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def first(self) -> np.ndarray:
        from onnxruntime_npu import ortvalue_to_numpy

        self.once()
        return ortvalue_to_numpy(self.binding.get_outputs()[0]).astype(np.float32)


def main() -> None:
    parser = harness.arguments_parser(__doc__, list(TOLERANCES), rounds=7)
    arguments = harness.parse_arguments(parser)

    for dtype in arguments.dtypes:
        specs = {
            "npu": harness.Spec(functools.partial(Npu, dtype, arguments.threads), ours=True),
            "torch": harness.Spec(functools.partial(Torch, dtype, arguments.threads)),
        }
        cases = []
        for phase, rows in ROWS.items():
            calls = 50 if phase == "decode" else 5
            cases += [
                harness.Case(
                    f"{name} {dtype} {'x'.join(map(str, CASES[name].shape(rows)))}",
                    LAYERS[phase] * calls,
                    "calls",
                    "time",
                    (name, phase, calls),
                )
                for name in CASES
            ]
        compare = functools.partial(
            harness.compare,
            method="result",
            calls=[(name, "decode") for name in CASES],
            tolerance=TOLERANCES[dtype],
        )
        harness.measure(arguments, f"ops-{dtype}", specs, cases, compare)


if __name__ == "__main__":
    main()
