"""Models of a layer with a paged cache, whose nodes are to be joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime_npu.exporter.caches.scaled_rows import attach_functions
from onnxruntime_npu.onnx_models.node_groups import DOMAIN
from onnxruntime_npu.onnx_models.saving import save
from onnxruntime_npu.opdef.attach import attach_function_bodies

HEADS, CACHED, PAGES, PAGE_ROWS, GATE = 4, 2, 7, 32, 24
NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"
PROVIDERS = [NPU, (NPU, {"host_memory": "1"}), CPU]
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
TYPES["bfloat16"] = TensorProto.BFLOAT16
# Bits behind the point: a formula of which either side may contract another multiply-add.
BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
OUTPUTS = ("attended", "keys", "values")
# New tokens of each sequence, some of no past and some of several pages.
NEW, PAST = [3, 1, 40, 1], [0, 33, 5, 31]
OPTIONS = {
    **{"num_heads": HEADS, "num_key_value_heads": CACHED, "scale": 0.2, "block_size": PAGE_ROWS},
    **{"input_layout": "TND", "sparse_mode": 3, "pre_tokens": 2**31 - 1, "next_tokens": 2**31 - 1},
}


def npu(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain="npu", name=outputs, **attributes)


def onnx_node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=outputs, **attributes)


def fused(op: str, inputs: str, outputs: str) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), domain=DOMAIN, name=outputs)


def layer(mode: str = "half", scaled: bool = False, **options: Any) -> list[onnx.NodeProto]:
    """The nodes; ``scaled``: attention reads parts of a cache whose rows end with scales."""
    keys, values = ("elements_k", "elements_v") if scaled else ("keys", "values")
    scales = "turned_k - turned_v -" if scaled else "- - - -"
    lengths = f"ends lengths {'- ' * 7}{scales} table"
    if scaled:
        options |= {"key_antiquant_mode": 5, "value_antiquant_mode": 5}
    return [
        onnx_node("Reshape", "rows heads", "view"),
        onnx_node("Split", "view parts", "q k v", axis=2),
        npu("NPURotaryMul", "q cos sin", "rotated_q", rotary_mode=mode),
        npu("NPURotaryMul", "k cos sin", "rotated_k", rotary_mode=mode),
        onnx_node("Reshape", "rotated_k cached", "new_k"),
        npu("NPUScatterNdUpdate", "past_keys slots new_k", "keys"),
        onnx_node("Reshape", "v cached", "new_v"),
        npu("NPUScatterNdUpdate", "past_values slots new_v", "values"),
        onnx_node("Reshape", "rotated_q queries", "query"),
        onnx_node("Reshape", f"{keys} pages", "key"),
        onnx_node("Reshape", f"{values} pages", "value"),
        npu(
            "NPUFusedInferAttentionScore",
            f"query key value - mask {lengths}",
            "result",
            **(OPTIONS | options),
        ),
        onnx_node("Unsqueeze", "result first", "unsqueezed"),
        onnx_node("Reshape", "unsqueezed joined", "attended"),
    ]


def rounded_layer(**options: Any) -> list[onnx.NodeProto]:
    """The same with a cache of int8 whose rows end with their scales, as an export has it."""
    nodes = []
    new = {"keys": "rotated_k", "values": "v"}
    for node in layer(scaled=True, **options):
        if node.name in ("new_k", "new_v"):
            continue
        if node.name not in new:
            nodes.append(node)
            continue
        of, (past, slots, _) = node.name[0], node.input
        quantised = f"integers_{of} scales_{of}"
        nodes += [
            npu("NPUDynamicQuant", new[node.name], quantised, quant_mode="pertoken"),
            fused("BytesOfFloats", f"scales_{of}", f"bytes_{of}"),
            onnx_node("Concat", f"integers_{of} bytes_{of}", f"scaled_{of}", axis=-1),
            onnx_node("Reshape", f"scaled_{of} cached_rows", f"new_{of}"),
            npu("NPUScatterNdUpdate", f"{past} {slots} new_{of}", node.name),
            onnx_node("Slice", f"{node.name} zero minus_four last", f"elements_{of}"),
            onnx_node("Slice", f"{node.name} minus_four all last", f"cached_bytes_{of}"),
            fused("FloatsOfBytes", f"cached_bytes_{of}", f"cached_scales_{of}"),
            onnx_node("Transpose", f"cached_scales_{of}", f"turned_{of}", perm=[0, 2, 1]),
        ]
    return nodes


def constants(size: int) -> dict[str, np.ndarray]:
    targets = {
        "heads": [1, -1, HEADS + 2 * CACHED, size],
        "parts": [HEADS, CACHED, CACHED],
        "cached": [-1, CACHED, size],
        "cached_rows": [-1, CACHED, size + 4],
        "queries": [-1, HEADS, size],
        "pages": [0, PAGE_ROWS, CACHED * size],
        "first": [0],
        "joined": [0, 0, HEADS * size],
        "same": [0, 0, 0, 0],
        "matrix": [-1, HEADS * size],
        **{"zero": [0], "minus_four": [-4], "last": [3], "all": [2**63 - 1]},
    }
    arrays = {name: np.array(target, np.int64) for name, target in targets.items()}
    return {**arrays, "mask": np.triu(np.ones((2048, 2048), bool), 1)}


def feeds(size: int, seed: int = 0, *, scaled: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = sum(NEW)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    def cache() -> np.ndarray:
        if not scaled:
            return floats(PAGES, PAGE_ROWS, CACHED, size)
        integers = rng.integers(-127, 128, (PAGES, PAGE_ROWS, CACHED, size), np.int8)
        scales = rng.uniform(0.5, 2, (PAGES, PAGE_ROWS, CACHED, 1)).astype(np.float32) / 127
        return np.concatenate([integers, scales.view(np.int8)], -1)

    free = iter(rng.permutation(PAGES).tolist())
    table = np.full((len(NEW), 3), -1, np.int32)  # unused entries are never read
    slots = []
    for b, (new, past) in enumerate(zip(NEW, PAST, strict=True)):
        for page in range(-(-(new + past) // PAGE_ROWS)):
            table[b, page] = next(free)
        slots += [(table[b, at // PAGE_ROWS], at % PAGE_ROWS) for at in range(past, past + new)]
    return {
        "rows": floats(1, tokens, (HEADS + 2 * CACHED) * size),
        "cos": floats(1, tokens, 1, size),
        "sin": floats(1, tokens, 1, size),
        "past_keys": cache(),
        "past_values": cache(),
        "slots": np.array(slots, np.int64),
        "ends": np.cumsum(NEW),
        "lengths": np.add(NEW, PAST),
        "table": table,
    }


SHAPES: dict[str, list[Any]] = {
    "rows": [1, "tokens", None],
    "cos": [1, "tokens", 1, None],
    "sin": [1, "tokens", 1, None],
    "slots": ["tokens", 2],
    "ends": ["sequences"],
    "lengths": ["sequences"],
    "table": ["sequences", "pages"],
}


def model_of(
    nodes: list[onnx.NodeProto],
    size: int = 32,
    dtype: str = "float32",
    outputs=OUTPUTS,
    more: Sequence[onnx.TensorProto] = (),
    types: Sequence[onnx.ValueInfoProto] = (),
    *,
    scaled: bool = False,
) -> ir.Model:
    """The nodes between casts of float32 from and to ``dtype``, with bodies.

    ``scaled``: caches are of int8.
    """
    of_dtype = ("rows",) if scaled else ("rows", "past_keys", "past_values")
    given, kind = feeds(size, scaled=scaled), TYPES[dtype]
    cached = TensorProto.INT8 if scaled else kind
    value = helper.make_tensor_value_info
    shapes = {
        name: [d or n for d, n in zip(SHAPES.get(name, array.shape), array.shape, strict=True)]
        for name, array in given.items()
    }
    before = [onnx_node("Cast", f"{name}_32", name, to=kind) for name in of_dtype]
    after = [onnx_node("Cast", name, f"{name}_32", to=TensorProto.FLOAT) for name in outputs]
    infos = [value(name, kind, shapes[name]) for name in of_dtype]
    for node in nodes:
        shape = {
            "Split": [1, "tokens", None, size],
            "NPURotaryMul": [1, "tokens", None, size],
            "NPUScatterNdUpdate": list(given["past_keys"].shape),
            "NPUFusedInferAttentionScore": ["tokens", HEADS, size],
            "MatMul": [1, "tokens", 2 * GATE],
            "NPUWeightQuantBatchMatmulV2": [1, "tokens", 2 * GATE],
            "NPUQuantMatmul": [1, "tokens", 2 * GATE],
            "NPUSwiGlu": [1, "tokens", GATE],
            "NPUAddRmsNorm": [1, "tokens", 2 * GATE],
            "Reshape": [None] * (4 if node.input[-1] == "same" else 3),
        }.get(node.op_type)
        if node.input[-1] == "heads":
            shape = [1, "tokens", HEADS + 2 * CACHED, size]
        if shape is not None:
            integers = node.output[0] in ("keys", "values", "key", "value", "new_k", "new_v")
            element = cached if integers else kind
            infos += [value(name, element, shape) for name in node.output if name != "rstd"]
        elif node.op_type == "Identity" and node.input[0] == "slots":
            infos.append(value(node.output[0], TensorProto.INT64, shapes["slots"]))
    if scaled:
        blocks = [PAGES, PAGE_ROWS, CACHED]
        for of in "kv":
            infos += [
                value(f"scaled_{of}", TensorProto.INT8, [1, "tokens", CACHED, size + 4]),
                value(f"elements_{of}", TensorProto.INT8, [*blocks, size]),
                value(f"cached_scales_{of}", TensorProto.FLOAT, blocks),
                value(f"turned_{of}", TensorProto.FLOAT, [PAGES, CACHED, PAGE_ROWS]),
            ]
    common = [onnx.numpy_helper.from_array(a, n) for n, a in constants(size).items()]
    weights = np.random.default_rng(5).standard_normal((HEADS * size, 2 * GATE)) / 8
    weight = helper.make_tensor("weight", kind, weights.shape, weights.ravel())
    gamma = helper.make_tensor("gamma", kind, [2 * GATE], weights[0, : 2 * GATE])
    graph = helper.make_graph(
        [*before, *nodes, *after],
        "layer",
        [
            value(
                f"{name}_32" if name in of_dtype else name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                shapes[name],
            )
            for name, array in given.items()
        ],
        [value(f"{name}_32", TensorProto.FLOAT, None) for name in outputs],
        [*common, weight, gamma, *more],
        value_info=[*infos, *types],
    )
    domains = ["npu", DOMAIN] if scaled else ["npu"]
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(each, 1) for each in domains)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    attach_function_bodies(model)
    attach_functions(model)
    return model


def session_of(model: ir.Model, folder: Any, provider: Any) -> ort.InferenceSession:
    folder = folder / str(len(list(folder.iterdir())))  # a model that was saved reads its weights
    folder.mkdir()
    save(model, folder / "model.onnx", "model.onnx.data")
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(folder / "model.onnx", options, providers=[provider])


def run(session: ort.InferenceSession, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    names = [each.name for each in session.get_inputs()]
    return session.run(None, {name: arrays[name.removesuffix("_32")] for name in names})
