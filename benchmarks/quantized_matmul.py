#!/usr/bin/env python3
"""Matmul with int8 and int4 weights against onnxruntime's CPU operators, interleaved in one run.

As matmul.py: every sample multiplies one activation by enough weights to exceed the caches, in one
session. Ours: npu_weight_quant_batchmatmul with bfloat16 activations (w8a16 and w4a16, groups of
128), and npu_dynamic_quant with npu_quant_matmul (w8a8). Peers, with float32 activations:
MatMulNBits with blocks of 128, whose accuracy level 4 quantises activations to int8, and
DynamicQuantizeMatMul. Bandwidth counts the bytes of the packed weights.
Results are compared with float64 before anything is timed.
"""

from __future__ import annotations

import functools
from typing import Any

import harness
import numpy as np
from matmul import COLD_BYTES, MOST_LAYERS, OUTPUT_BYTES, ROWS, SEED, SHAPES, OrtMatMul, rows_of

GROUP = 128
BITS = {"w8a16": 8, "w4a16": 4, "w8a8": 8}
# Activations are rounded to bfloat16, or quantised to int8 for each row or block of a row.
TOLERANCES = {"w8a16": 1.2e-2, "w4a16": 1.2e-2, "w8a8": 1.5e-2}


def layers_of(scheme: str, k: int, n: int) -> int:
    """The number of weights of this shape that exceeds the caches."""
    return max(2, min(MOST_LAYERS, COLD_BYTES * 8 // (k * n * BITS[scheme])))


def integers_of(scheme: str, k: int, n: int, layers: int) -> np.ndarray:
    """Weights [layers, k, n] in int8, each with different values."""
    most = 2 ** (BITS[scheme] - 1)
    numbers = np.random.default_rng(SEED)
    return numbers.integers(-most, most, (layers, k, n), np.int8, endpoint=False)


def scales_of(scheme: str, k: int, n: int) -> np.ndarray:
    """Scales [groups, n] in float32, of values that bfloat16 has."""
    groups = -(-k // GROUP) if scheme == "w4a16" else 1
    return np.random.default_rng(SEED + 2).integers(16, 32, (groups, n)).astype(np.float32) / 1024


class Quantised(OrtMatMul):
    """A session of one scheme; `kind` selects the operators."""

    def __init__(self, provider: str, scheme: str, kind: str, threads: int) -> None:
        super().__init__(provider, "bfloat16" if kind == "npu" else "float32", threads)
        self.scheme, self.kind = scheme, kind

    def set_shape(self, k: int, n: int) -> None:
        if self.shape != (k, n):
            self.shape = (k, n)
            self.load(k, n, layers_of(self.scheme, k, n))

    def load(self, k: int, n: int, layers: int) -> None:
        from onnx import helper, numpy_helper
        from sessions import numpy_dtype, session_of

        self.numpy_type = numpy_dtype(self.dtype)
        self.element = helper.np_dtype_to_tensor_dtype(self.numpy_type)
        names = [f"w{i}" for i in range(layers)]
        nodes, constants = [], {}
        for name, values in zip(names, integers_of(self.scheme, k, n, layers), strict=True):
            more, tensors = getattr(self, f"_{self.kind}")(
                name, values, scales_of(self.scheme, k, n)
            )
            nodes += more
            constants.update(tensors)
        graph = helper.make_graph(
            nodes,
            "layers",
            [helper.make_tensor_value_info("x", self.element, ["m", k])],
            [helper.make_tensor_value_info(f"y_{w}", self.element, ["m", n]) for w in names],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        options = {"enable_npu_graph": "1"} if self.device == "npu" else {}
        self.session = session_of(graph, self.provider, self.threads, options)
        self.layers, self.k, self.n, self.bound_rows = names, k, n, 0

    def _npu(self, name: str, values: np.ndarray, scales: np.ndarray) -> Any:
        from onnx import helper

        node = functools.partial(helper.make_node, domain="npu")
        bfloat16_code = 27
        if self.scheme == "w8a8":
            nodes = [
                node("NPUDynamicQuant", ["x"], [f"q_{name}", f"s_{name}"]),
                node(
                    "NPUQuantMatmul", [f"q_{name}", name, "scale", "", f"s_{name}"], [f"y_{name}"],
                    output_dtype=bfloat16_code,
                ),
            ]  # fmt: skip
            return nodes, {name: values, "scale": scales[0]}
        words = values if BITS[self.scheme] == 8 else _words(values)
        attributes = {"antiquant_group_size": GROUP} if self.scheme == "w4a16" else {}
        nodes = [
            node("NPUWeightQuantBatchMatmulV2", ["x", name, "scale"], [f"y_{name}"], **attributes)
        ]
        return nodes, {name: words, "scale": scales.astype(self.numpy_type)}

    def _blocks(self, name: str, values: np.ndarray, scales: np.ndarray, level: int) -> Any:
        from onnx import helper

        k, n = values.shape
        bits, blocks = BITS[self.scheme], -(-k // GROUP)
        unsigned = np.zeros((n, blocks * GROUP), np.uint8) + 2 ** (bits - 1)
        unsigned[:, :k] = values.T.astype(np.int16) + 2 ** (bits - 1)
        if bits == 4:
            unsigned = unsigned[:, ::2] | unsigned[:, 1::2] << 4
        node = helper.make_node(
            "MatMulNBits", ["x", name, f"s_{name}"], [f"y_{name}"], domain="com.microsoft",
            K=k, N=n, bits=bits, block_size=GROUP, accuracy_level=level,
        )  # fmt: skip
        of_blocks = np.broadcast_to(scales, (blocks, n)).T
        tensors = {
            name: unsigned.reshape(n, blocks, -1),
            f"s_{name}": np.ascontiguousarray(of_blocks).reshape(-1),
        }
        return [node], tensors

    def _float_blocks(self, *arguments: Any) -> Any:
        return self._blocks(*arguments, level=0)

    def _int8_blocks(self, *arguments: Any) -> Any:
        return self._blocks(*arguments, level=4)

    def _dynamic(self, name: str, values: np.ndarray, scales: np.ndarray) -> Any:
        from onnx import helper

        node = helper.make_node(
            "DynamicQuantizeMatMul", ["x", name, "scale"], [f"y_{name}"], domain="com.microsoft"
        )
        return [node], {name: values, "scale": scales[0]}

    def error(self, k: int, n: int, m: int) -> np.ndarray:
        """The relative error of the last product against float64."""
        self.set_shape(k, n)
        self.once(m)
        values = integers_of(self.scheme, k, n, len(self.layers))[-1].astype(np.float64)
        scales = np.repeat(scales_of(self.scheme, k, n), GROUP, 0)[:k]
        exact = rows_of(m, k).astype(np.float64) @ (
            values * (scales if len(scales) == k else scales[0])
        )
        difference = np.linalg.norm(self.last_product() - exact) / np.linalg.norm(exact)
        return np.array([difference], np.float32)


def _words(values: np.ndarray) -> np.ndarray:
    """int4 values [k, n] as int32 [k, n / 8], the first in the lowest bits."""
    nibbles = values.reshape(values.shape[0], -1, 8).astype(np.uint32) & 15
    return np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)


def _check(engines: list[harness.Engine], scheme: str, rows: list[int]) -> None:
    for m in rows:
        for engine in engines:
            error = float(engine.call("error", *SHAPES[0], m)[0])
            if not error <= TOLERANCES[scheme]:
                raise SystemExit(f"{engine.name}: {scheme} M={m} differs by {error:.1e}")


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", list(BITS), rounds=7)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of activations")
    arguments = harness.parse_arguments(parser)
    for scheme in arguments.dtypes:
        make = functools.partial(Quantised, scheme=scheme, threads=arguments.threads)
        specs = {
            "npu": harness.Spec(
                functools.partial(make, "NPUExecutionProvider", kind="npu"), ours=True
            )
        }
        peers = {"ort-nbits-float": "float_blocks", "ort-nbits-int8": "int8_blocks"}
        if scheme == "w8a8":
            peers = {"ort-dynamic": "dynamic", "ort-nbits-int8": "int8_blocks"}
        for name, kind in peers.items():
            specs[name] = harness.Spec(functools.partial(make, "CPUExecutionProvider", kind=kind))
        cases = []
        for k, n in SHAPES:
            layers = layers_of(scheme, k, n)
            for m in arguments.rows:
                if layers * m * n * 4 <= OUTPUT_BYTES:
                    gflop = 2e-9 * layers * m * n * k
                    title = f"{scheme} {k}x{n} M={m}"
                    cases.append(harness.Case(title, gflop, "GFLOP", "time", (k, n, m)))
        check = functools.partial(_check, scheme=scheme, rows=arguments.rows)
        harness.measure(arguments, f"quantized-{scheme}", specs, cases, check)


if __name__ == "__main__":
    main()
