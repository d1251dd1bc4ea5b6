#!/usr/bin/env python3
"""Attention against torch's scaled_dot_product_attention, interleaved in one run, and its memory.

Our side is sessions of one node, npu_fused_infer_attention_score ("inference") and
npu_fusion_attention ("training"), with inputs and outputs on the device. The last tables give the
peak device memory of a call beyond its inputs and outputs, including the backward pass: at most
linear in the sequence length, where full scores would be quadratic. Results are compared before
anything is timed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import harness
import numpy as np

if TYPE_CHECKING:
    import torch

HEADS, KEY_HEADS, SIZE = 16, 4, 64
CASES = [  # name, queries, keys
    ("prefill 512", 512, 512),
    ("prefill 2048", 2048, 2048),
    ("decode over 1k", 1, 1024),
    ("decode over 8k", 1, 8192),
    ("decode over 32k", 1, 32768),
]
MEMORY_LENGTHS = [1024, 8192, 32768]
MEMORY_HEADS = 2  # few heads: only memory is measured, and 32k x 32k scores take long
SEED = 0
# Sums in float32; attention weights and results are rounded to the type: two roundings.
TOLERANCES = {"float32": 5e-6, "bfloat16": 8e-3, "float16": 1e-3}
STATISTICS = ("max", "sum")  # float32, each value eight times
# Op type: inputs, outputs, and the last axis of inputs with a different one.
SIGNATURES: dict[str, tuple[list[str], list[str], dict[str, int]]] = {
    "NPUFusedInferAttentionScore": (["query", "key", "value", "", "mask"], ["out"], {}),
    "NPUFusionAttention": (["query", "key", "value", "", "", "mask"], ["out", *STATISTICS], {}),
    "NPUFusionAttentionGrad": (
        ["query", "key", "value", "dy", "", "", "mask", *STATISTICS, "", "attention"],
        ["dq", "dk", "dv"],
        {"max": 8, "sum": 8},
    ),
}


def tensor_of(name: str, heads: int, rows: int, size: int) -> np.ndarray:
    """The float32 input [1, heads, rows, size] of this name, the same for every engine."""
    generator = np.random.default_rng([SEED, *name.encode()])
    return generator.standard_normal((1, heads, rows, size), np.float32)


class Torch:
    """scaled_dot_product_attention on the CPU; a single query sees every key."""

    def __init__(self, dtype: str, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.type = getattr(torch, dtype)

    def _call(self, queries: int, keys: int) -> Callable[[], torch.Tensor]:
        """Return a function that calls it on the tensors of a case."""
        import torch

        q, k, v = (
            torch.from_numpy(tensor_of(name, heads, rows, SIZE)).to(self.type)
            for name, heads, rows in (
                ("query", HEADS, queries),
                ("key", KEY_HEADS, keys),
                ("value", KEY_HEADS, keys),
            )
        )
        options = {"is_causal": queries > 1, "enable_gqa": True}
        if queries == 1:  # torch's best form: a key head's queries as its rows
            q, options = q.view(1, KEY_HEADS, HEADS // KEY_HEADS, SIZE), {}
        function = torch.nn.functional.scaled_dot_product_attention
        return functools.partial(function, q, k, v, **options)

    def output(self, queries: int, keys: int) -> np.ndarray:
        """The result [1, HEADS, queries, SIZE] in float32."""
        return self._call(queries, keys)().float().view(1, HEADS, queries, SIZE).numpy()

    def time(self, queries: int, keys: int, calls: int) -> float:
        """Seconds of `calls` calls."""
        import torch

        call = self._call(queries, keys)
        with torch.inference_mode():
            call()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            return time.perf_counter() - begin


class Npu:
    """A session of one attention node."""

    def __init__(self, op_type: str, dtype: str, heads: int, key_heads: int) -> None:
        import onnx
        import onnxruntime_npu
        from onnx import helper
        from sessions import numpy_dtype, session_of

        self.npu = onnxruntime_npu
        self.heads, self.key_heads = heads, key_heads
        self.numpy_type = numpy_dtype(dtype)
        self.element = helper.np_dtype_to_tensor_dtype(self.numpy_type)
        inputs, self.outputs, sizes = SIGNATURES[op_type]
        attributes = {"scale_value" if op_type.endswith("Grad") else "scale": SIZE**-0.5}
        if "Fusion" in op_type:
            attributes["head_num"] = heads
        else:
            attributes |= {"num_heads": heads, "num_key_value_heads": key_heads}
        self.inputs = {name: sizes.get(name, SIZE) for name in inputs if name not in ("", "mask")}
        node = helper.make_node(
            op_type, inputs, self.outputs, domain="npu", input_layout="BNSD", sparse_mode=3,
            **attributes,
        )  # fmt: skip

        def info(name: str, shape: list[Any] | None) -> Any:
            statistics = name in STATISTICS
            element = onnx.TensorProto.FLOAT if statistics else self.element
            return helper.make_tensor_value_info(name, element, shape)

        graph = helper.make_graph(
            [node],
            "attention",
            [info(name, [1, None, None, size]) for name, size in self.inputs.items()],
            [info(name, None) for name in self.outputs],
            [onnx.numpy_helper.from_array(np.triu(np.ones((2048, 2048), bool), 1), "mask")],
        )
        self.session = session_of(graph, "NPUExecutionProvider")

    def _binding(self, queries: int, keys: int) -> Any:
        binding = self.session.io_binding()
        for name, size in self.inputs.items():
            cache = name in ("key", "value")
            heads, rows = (self.key_heads, keys) if cache else (self.heads, queries)
            values = tensor_of(name, heads, rows, size)
            if name not in STATISTICS:
                values = values.astype(self.numpy_type)
            binding.bind_ortvalue_input(name, self.npu.ortvalue_from_numpy(values))
        for name in self.outputs:
            binding.bind_output(name, "npu")
        return binding

    def workspace(self, length: int) -> int:
        """Peak bytes beyond inputs and outputs of a call over `length` queries and keys."""
        binding = self._binding(length, length)
        memory = self.npu.npu
        memory.reset_peak_memory_stats()
        self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return memory.max_memory_allocated() - memory.memory_allocated()

    def output(self, queries: int, keys: int) -> np.ndarray:
        """The result [1, heads, queries, SIZE] in float32."""
        binding = self._binding(queries, keys)
        self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return self.npu.ortvalue_to_numpy(binding.get_outputs()[0]).astype(np.float32)

    def time(self, queries: int, keys: int, calls: int) -> float:
        """Seconds of `calls` calls."""
        binding = self._binding(queries, keys)
        self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        begin = time.perf_counter()
        for _ in range(calls):
            self.session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return time.perf_counter() - begin


def memory_table(dtype: str) -> str:
    """Peak workspace of a causal call by length, next to the size of its scores."""
    lines = [
        "| peak workspace, MB | " + " | ".join(f"{n // 1024}k" for n in MEMORY_LENGTHS) + " |",
        "|---|" + "---|" * len(MEMORY_LENGTHS),
    ]
    for op_type in SIGNATURES:
        engine = harness.Engine(op_type, functools.partial(Npu, op_type, dtype, MEMORY_HEADS, 1))
        cells = [f"{engine.call('workspace', n) / 1e6:.2f}" for n in MEMORY_LENGTHS]
        engine.close()
        lines.append(f"| {op_type} {dtype} | " + " | ".join(cells) + " |")
    scores = [f"{MEMORY_HEADS * n * n * 4 / 1e6:.0f}" for n in MEMORY_LENGTHS]
    lines.append("| a score per query and key, for comparison | " + " | ".join(scores) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = harness.arguments_parser(__doc__, ["float32", "bfloat16", "float16"], rounds=7)
    arguments = harness.parse_arguments(parser)

    for dtype in arguments.dtypes:
        make = functools.partial(Npu, dtype=dtype, heads=HEADS, key_heads=KEY_HEADS)
        specs = {
            "inference": harness.Spec(functools.partial(make, "NPUFusedInferAttentionScore"), True),
            "training": harness.Spec(functools.partial(make, "NPUFusionAttention"), True),
            "torch": harness.Spec(functools.partial(Torch, dtype, arguments.threads)),
        }
        cases = []
        for name, queries, keys in CASES:
            pairs = queries * (queries + 1) / 2 if queries > 1 else keys
            gflop = 4e-9 * HEADS * SIZE * pairs
            calls = max(1, round(4 / gflop)) if queries > 1 else max(1, 64 * 1024 // keys)
            work = gflop * calls
            case = harness.Case(f"{dtype} {name}", work, "GFLOP", "time", (queries, keys, calls))
            cases.append(case)
        check = functools.partial(
            harness.compare,
            method="output",
            calls=[(queries, keys) for _, queries, keys in CASES],
            tolerance=TOLERANCES[dtype],
        )
        harness.measure(arguments, f"attention-{dtype}", specs, cases, check)
    if not arguments.only:
        for dtype in arguments.dtypes:
            print(memory_table(dtype), flush=True)


if __name__ == "__main__":
    main()
