#!/usr/bin/env python3
"""Matrix products against peers on this machine, interleaved in one run.

Every sample multiplies one activation by as many weights as exceed the caches, as the layers of a
model do. Ours: one session of MatMul nodes, outputs left on the device. Peers: the same file on
onnxruntime's CPUExecutionProvider (float32 and float16; it has no bfloat16 MatMul) and
torch.nn.functional.linear.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import harness

# SmolLM2-135M's projections, then those of a 0.5 B and a 7 B model: K, N.
SHAPES = [(576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152), (896, 4864), (4096, 4096)]
ROWS = [1, 4, 16, 128, 512]
COLD_BYTES = 128 << 20
MOST_LAYERS = 64
OUTPUT_BYTES = 512 << 20
SEED = 0


def layers_of(k: int, n: int, bytes_each: int) -> int:
    """How many weights of this shape exceed the caches."""
    return max(2, min(MOST_LAYERS, COLD_BYTES // (k * n * bytes_each)))


class Layers:
    """One shape at a time; `time(m)` returns the seconds of one pass over all its weights."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.dtype = dtype
        self.threads = threads
        self.shape: tuple[int, int] | None = None

    def set_shape(self, k: int, n: int) -> None:
        """Make the weights of another shape; those of the last one are dropped."""
        if self.shape != (k, n):
            self.shape = (k, n)
            self.load(k, n, layers_of(k, n, 4 if self.dtype == "float32" else 2))

    def load(self, k: int, n: int, layers: int) -> None:
        """Make `layers` weights."""
        raise NotImplementedError

    def once(self, m: int) -> None:
        """Multiply m rows by every weight, and wait."""
        raise NotImplementedError

    def time(self, k: int, n: int, m: int) -> float:
        """Seconds of one pass; the first one of a shape is not counted."""
        fresh = self.shape != (k, n)
        self.set_shape(k, n)
        if fresh:
            self.once(m)
        begin = time.perf_counter()
        self.once(m)
        return time.perf_counter() - begin


class TorchLinear(Layers):
    """torch.nn.functional.linear."""

    def load(self, k: int, n: int, layers: int) -> None:
        import torch

        torch.set_num_threads(self.threads)
        generator = torch.Generator().manual_seed(SEED)
        self.type = getattr(torch, self.dtype)
        weight = torch.randn(n, k, generator=generator).to(self.type)
        self.weights = [weight.clone() for _ in range(layers)]

    def once(self, m: int) -> None:
        import torch

        x = torch.ones(m, self.weights[0].shape[1], dtype=self.type)
        with torch.inference_mode():
            for weight in self.weights:
                torch.nn.functional.linear(x, weight)


class OrtMatMul(Layers):
    """A session of MatMul nodes on one provider, with outputs bound to its own memory."""

    def __init__(self, provider: str, dtype: str, threads: int) -> None:
        super().__init__(dtype, threads)
        self.provider = provider

    def load(self, k: int, n: int, layers: int) -> None:
        import numpy as np
        import onnx
        from onnx import helper
        from sessions import numpy_dtype, session_of

        numpy_type = numpy_dtype(self.dtype)
        self.element = helper.np_dtype_to_tensor_dtype(numpy_type)
        # Values of each layer's own: onnxruntime keeps equal weights once, and reads them from the
        # cache.
        weights = np.random.default_rng(SEED).standard_normal((layers, k, n), np.float32)
        names = [f"w{i}" for i in range(layers)]
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", w], [f"y_{w}"]) for w in names],
            "layers",
            [helper.make_tensor_value_info("x", self.element, ["m", k])],
            [helper.make_tensor_value_info(f"y_{w}", self.element, ["m", n]) for w in names],
            [
                onnx.numpy_helper.from_array(w.astype(numpy_type), name)
                for name, w in zip(names, weights, strict=True)
            ],
        )
        self.session = session_of(graph, self.provider, self.threads)
        self.names, self.depth, self.numpy_type = names, k, numpy_type
        self.bindings: dict[int, Any] = {}

    def _binding(self, m: int) -> Any:
        import numpy as np
        import onnxruntime as ort

        if m not in self.bindings:
            self.bindings = {}  # the outputs of another number of rows are in the way
            x = np.ones((m, self.depth), self.numpy_type)
            bits = x.view(np.uint16) if self.dtype == "bfloat16" else x
            binding = self.session.io_binding()
            value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, self.element)
            binding.bind_ortvalue_input("x", value)
            device = "cpu" if self.provider == "CPUExecutionProvider" else "npu"
            for name in self.names:
                binding.bind_output(f"y_{name}", device)
            self.bindings[m] = binding
        return self.bindings[m]

    def once(self, m: int) -> None:
        binding = self._binding(m)
        self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()


def main() -> None:
    parser = harness.arguments_parser(__doc__, ["float32", "bfloat16", "float16"], rounds=7)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of activations")
    arguments = harness.parse_arguments(parser)

    for dtype in arguments.dtypes:
        options = {"dtype": dtype, "threads": arguments.threads}
        ours = functools.partial(OrtMatMul, "NPUExecutionProvider", **options)
        specs = {
            "npu": harness.Spec(ours, ours=True),
            "torch": harness.Spec(functools.partial(TorchLinear, **options)),
        }
        if dtype != "bfloat16":
            make = functools.partial(OrtMatMul, "CPUExecutionProvider", **options)
            specs["ort-cpu"] = harness.Spec(make)
        cases = []
        for k, n in SHAPES:
            bytes_each = 4 if dtype == "float32" else 2
            layers = layers_of(k, n, bytes_each)
            for m in arguments.rows:
                if layers * m * n * bytes_each > OUTPUT_BYTES:
                    continue
                gflop = 2e-9 * layers * m * n * k
                name = f"{dtype} {k}x{n} M={m}"
                cases.append(harness.Case(name, gflop, "GFLOP", "time", (k, n, m)))
        harness.measure(arguments, f"matmul-{dtype}", specs, cases)


if __name__ == "__main__":
    main()
