#!/usr/bin/env python3
"""Matmul with int8 and int4 weights against peers on this machine, interleaved in one run.

As matmul.py: every sample multiplies one activation by enough weights to exceed the caches, in one
session. Ours: npu_weight_quant_batchmatmul with bfloat16 activations (w8a16, and w4a16 with groups
of 128, or 64 where the depth needs it), as it is and with inner_precise 1, which rounds activations
to int8 ("npu-int8"); npu_dynamic_quant with npu_quant_matmul (w8a8). Peers, from the same integers:

- ort-nbits-float, ort-nbits-int8: onnxruntime's MatMulNBits, accuracy levels 0 and 4, float32
- ort-dynamic: its DynamicQuantizeMatMul, float32
- torch: its int8 and int4 by bfloat16, or dynamically quantised linear layers
- openvino, openvino-int8: compressed weights by bfloat16, or by dynamically quantised activations
- llama.cpp: ggml's q4_0 and q8_0, blocks of 32, which quantise activations to int8

Bandwidth counts the bytes of the packed weights. Results are compared with float64 before anything
is timed.
"""

from __future__ import annotations

import functools
from typing import Any

import harness
import numpy as np
import quantized_peers
from matmul import OUTPUT_BYTES, ROWS, SHAPES, OrtMatMul
from peers import Peers
from quantized_weights import (
    BITS,
    group_of,
    integers_of,
    layers_of,
    nibbles,
    relative_error,
    scales_of,
    words,
)

# Activations are rounded to bfloat16, or quantised to int8 for each row or block of a row.
TOLERANCES = {"w8a16": 1.2e-2, "w4a16": 1.2e-2, "w8a8": 1.5e-2}


class Quantised(OrtMatMul):
    """A session of one scheme; `kind` selects the operators."""

    def __init__(self, provider: str, scheme: str, kind: str, threads: int) -> None:
        super().__init__(provider, "bfloat16" if kind.startswith("npu") else "float32", threads)
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

    def _npu_rounded(self, *arguments: Any) -> Any:
        return self._npu(*arguments, inner_precise=1)

    def _npu(
        self, name: str, values: np.ndarray, scales: np.ndarray, inner_precise: int = 0
    ) -> Any:
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
        stored = values if BITS[self.scheme] == 8 else words(values)
        nodes = [
            node(
                "NPUWeightQuantBatchMatmulV2", ["x", name, "scale"], [f"y_{name}"],
                antiquant_group_size=group_of(values.shape[0]) if self.scheme == "w4a16" else 0,
                inner_precise=inner_precise,
            )
        ]  # fmt: skip
        return nodes, {name: stored, "scale": scales.astype(self.numpy_type)}

    def _blocks(self, name: str, values: np.ndarray, scales: np.ndarray, level: int) -> Any:
        from onnx import helper

        k, n = values.shape
        bits, group = BITS[self.scheme], group_of(k)
        blocks = k // group
        unsigned = (values.T.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8)
        if bits == 4:
            unsigned = nibbles(unsigned)
        node = helper.make_node(
            "MatMulNBits", ["x", name, f"s_{name}"], [f"y_{name}"], domain="com.microsoft",
            K=k, N=n, bits=bits, block_size=group, accuracy_level=level,
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
        return relative_error(self.scheme, k, n, m, self.last_product())


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", list(BITS), rounds=7)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="rows of activations")
    arguments = harness.parse_arguments(parser)
    of_engine = {name: name.removesuffix("-int8") for name in quantized_peers.ENGINES}
    peers_there = Peers(harness.FOLDER, of_engine.values())
    for scheme in arguments.dtypes:
        make = functools.partial(Quantised, scheme=scheme, threads=arguments.threads)
        ours = {"npu": "npu"} if scheme == "w8a8" else {"npu": "npu", "npu-int8": "npu_rounded"}
        specs = {
            name: harness.Spec(
                functools.partial(make, "NPUExecutionProvider", kind=kind), ours=True
            )
            for name, kind in ours.items()
        }
        peers = {"ort-nbits-float": "float_blocks", "ort-nbits-int8": "int8_blocks"}
        if scheme == "w8a8":
            peers = {"ort-dynamic": "dynamic", "ort-nbits-int8": "int8_blocks"}
        for name, kind in peers.items():
            specs[name] = harness.Spec(functools.partial(make, "CPUExecutionProvider", kind=kind))
        missing: dict[str, str] = {}
        for name, kind in quantized_peers.ENGINES.items():
            if reason := peers_there.unavailable.get(of_engine[name]):
                missing[name] = reason
                continue
            peer = functools.partial(kind, scheme=scheme, threads=arguments.threads)
            specs[name] = harness.Spec(peer, python=peers_there.python)
        cases = []
        for k, n in SHAPES:
            layers = layers_of(scheme, k, n)
            for m in arguments.rows:
                if layers * m * n * 4 <= OUTPUT_BYTES:
                    gflop = 2e-9 * layers * m * n * k
                    title = f"{scheme} {k}x{n} M={m}"
                    cases.append(harness.Case(title, gflop, "GFLOP", "time", (k, n, m)))
        check = functools.partial(
            harness.check_errors,
            tolerance=TOLERANCES[scheme],
            calls=[(*SHAPES[0], m) for m in arguments.rows],
        )
        harness.measure(arguments, f"quantized-{scheme}", specs, cases, check, missing)
        for engine, why in missing.items():
            print(f"{scheme} not measured: {engine}: {why}", flush=True)


if __name__ == "__main__":
    main()
