#!/usr/bin/env python3
"""Matmul against peers on this machine, interleaved in one run.

Every sample multiplies one activation by enough weights to exceed the caches, like the layers of a
model. Ours: one session of MatMul nodes, captured as a graph, outputs on the device. Peers:
the same file on onnxruntime's CPUExecutionProvider (float32 and float16; it has no bfloat16
MatMul), and torch's linear with plain and with prepacked weights.
Results are compared before anything is timed.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import harness
import numpy as np

# SmolLM2-135M's projections, then those of a 0.5 B and a 7 B model: K, N.
SHAPES = [(576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152), (896, 4864), (4096, 4096)]
ROWS = [1, 4, 16, 128, 512]
COLD_BYTES = 128 << 20
MOST_LAYERS = 64
OUTPUT_BYTES = 512 << 20
SEED = 0
# All sum in float32 and round once; the order of summation changes a few float32 roundings.
TOLERANCES = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 5e-4}


def layers_of(k: int, n: int, bytes_each: int) -> int:
    """The number of weights of this shape that exceeds the caches."""
    return max(2, min(MOST_LAYERS, COLD_BYTES // (k * n * bytes_each)))


def weights_of(k: int, n: int, layers: int) -> np.ndarray:
    """Weights [layers, k, n] in float32, each with different values.

    Onnxruntime stores equal weights once, and would read them from the cache.
    """
    return np.random.default_rng(SEED).standard_normal((layers, k, n), np.float32)


def rows_of(m: int, k: int) -> np.ndarray:
    """An activation [m, k] in float32."""
    return np.random.default_rng(SEED + 1).standard_normal((m, k), np.float32)


class Layers:
    """One shape at a time; `time(m)` returns the seconds of one pass over all its weights."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.dtype = dtype
        self.threads = threads
        self.shape: tuple[int, int] | None = None

    def set_shape(self, k: int, n: int) -> None:
        """Create the weights of another shape; the previous ones are dropped."""
        if self.shape != (k, n):
            self.shape = (k, n)
            self.load(k, n, layers_of(k, n, 4 if self.dtype == "float32" else 2))

    def load(self, k: int, n: int, layers: int) -> None:
        """Create `layers` weights."""
        raise NotImplementedError

    def once(self, m: int) -> None:
        """Multiply m rows by every weight, and wait."""
        raise NotImplementedError

    def last_product(self) -> np.ndarray:
        """The result of `once` with the last weight, in float32."""
        raise NotImplementedError

    def product(self, k: int, n: int, m: int) -> np.ndarray:
        """The matmul with the last weight, in float32."""
        self.set_shape(k, n)
        self.once(m)
        return self.last_product()

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
    """torch.nn.functional.linear, as a model's Linear calls it."""

    def load(self, k: int, n: int, layers: int) -> None:
        import torch

        torch.set_num_threads(self.threads)
        self.type = getattr(torch, self.dtype)
        weights = torch.from_numpy(weights_of(k, n, layers)).to(self.type)
        self.weights = [self.packed(w.mT.contiguous()) for w in weights]
        self.x = torch.empty(0, k, dtype=self.type)

    def packed(self, weight: Any) -> Any:
        """The weight [n, k] in the form that `linear` reads."""
        return weight

    def linear(self, x: Any, weight: Any) -> Any:
        """One matmul."""
        import torch

        return torch.nn.functional.linear(x, weight)

    def once(self, m: int) -> None:
        import torch

        if self.x.shape[0] != m:
            self.x = torch.from_numpy(rows_of(m, self.x.shape[1])).to(self.type)
        with torch.inference_mode():
            for weight in self.weights:
                self.last = self.linear(self.x, weight)

    def last_product(self) -> np.ndarray:
        return self.last.float().numpy()


class TorchPrepacked(TorchLinear):
    """torch's linear on weights that oneDNN packed beforehand, as its compiler's freezing does."""

    def __init__(self, dtype: str, threads: int) -> None:
        import torch

        super().__init__(dtype, threads)
        self.packed(torch.zeros(16, 16, dtype=getattr(torch, dtype)))  # float16 not on every CPU

    def packed(self, weight: Any) -> Any:
        import torch

        return torch.ops.mkldnn._reorder_linear_weight(weight)

    def linear(self, x: Any, weight: Any) -> Any:
        import torch

        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


class OrtMatMul(Layers):
    """A session of MatMul nodes on one provider, with outputs bound to its own memory."""

    def __init__(self, provider: str, dtype: str, threads: int) -> None:
        super().__init__(dtype, threads)
        self.provider = provider
        self.device = "cpu" if provider == "CPUExecutionProvider" else "npu"
        self.bindings = 0

    def load(self, k: int, n: int, layers: int) -> None:
        import onnx
        from onnx import helper
        from sessions import numpy_dtype, session_of

        numpy_type = numpy_dtype(self.dtype)
        self.element = helper.np_dtype_to_tensor_dtype(numpy_type)
        names = [f"w{i}" for i in range(layers)]
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", w], [f"y_{w}"]) for w in names],
            "layers",
            [helper.make_tensor_value_info("x", self.element, ["m", k])],
            [helper.make_tensor_value_info(f"y_{w}", self.element, ["m", n]) for w in names],
            [
                onnx.numpy_helper.from_array(w.astype(numpy_type), name)
                for name, w in zip(names, weights_of(k, n, layers), strict=True)
            ],
        )
        options = {"enable_npu_graph": "1"} if self.device == "npu" else {}
        self.session = session_of(graph, self.provider, self.threads, options)
        self.layers, self.k, self.n, self.numpy_type = names, k, n, numpy_type
        self.bound_rows = 0

    def _bind(self, m: int) -> None:
        import onnxruntime as ort
        from onnxruntime_npu import ortvalue_from_numpy

        make = ort.OrtValue.ortvalue_from_shape_and_type
        self.bound_rows, self.bindings = m, self.bindings + 1
        self.binding = self.session.io_binding()  # drops the outputs of other row counts
        x = rows_of(m, self.k).astype(self.numpy_type)
        if self.device == "npu":
            value = ortvalue_from_numpy(x)
        else:
            value = ort.OrtValue.ortvalue_from_numpy(x)
        self.binding.bind_ortvalue_input("x", value)
        # As torch's allocator has it, a result is stored where the last but one was: results of all
        # layers apart exceed the caches. The last one is compared, and nodes run in any order.
        outputs = [make([m, self.n], self.element, self.device) for _ in range(3)]
        for i, name in enumerate(self.layers):
            last = i == len(self.layers) - 1
            self.binding.bind_ortvalue_output(f"y_{name}", outputs[2 if last else i % 2])
        self.run_options = ort.RunOptions()
        if self.device == "npu":  # a graph per binding, whose outputs it writes
            self.run_options.add_run_config_entry("gpu_graph_id", str(self.bindings))

    def once(self, m: int) -> None:
        if m != self.bound_rows:
            self._bind(m)
        self.session.run_with_iobinding(self.binding, self.run_options)
        self.binding.synchronize_outputs()

    def last_product(self) -> np.ndarray:
        from onnxruntime_npu import ortvalue_to_numpy

        return ortvalue_to_numpy(self.binding.get_outputs()[-1]).astype(np.float32)


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
            "torch-prepacked": harness.Spec(functools.partial(TorchPrepacked, **options)),
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
        check = functools.partial(
            harness.compare,
            method="product",
            calls=[SHAPES[0] + (m,) for m in arguments.rows],
            tolerance=TOLERANCES[dtype],
        )
        missing: dict[str, str] = {}
        harness.measure(arguments, f"matmul-{dtype}", specs, cases, check, missing)
        for engine, why in missing.items():
            print(f"{dtype} not measured: {engine}: {why}", flush=True)


if __name__ == "__main__":
    main()
