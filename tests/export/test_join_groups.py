"""Nodes of a layer with a paged cache become one, which computes what its function does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu.converters.inline import inline
from onnxruntime_npu.converters.model_file import read
from onnxruntime_npu.onnx_models.join_groups import join_groups
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


def layer(mode: str = "half", **options: Any) -> list[onnx.NodeProto]:
    lengths = f"ends lengths {'- ' * 11}table"
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
        onnx_node("Reshape", "keys pages", "key"),
        onnx_node("Reshape", "values pages", "value"),
        npu(
            "NPUFusedInferAttentionScore",
            f"query key value - mask {lengths}",
            "result",
            **(OPTIONS | options),
        ),
        onnx_node("Unsqueeze", "result first", "unsqueezed"),
        onnx_node("Reshape", "unsqueezed joined", "attended"),
    ]


def constants(size: int) -> dict[str, np.ndarray]:
    targets = {
        "heads": [1, -1, HEADS + 2 * CACHED, size],
        "parts": [HEADS, CACHED, CACHED],
        "cached": [-1, CACHED, size],
        "queries": [-1, HEADS, size],
        "pages": [0, PAGE_ROWS, CACHED * size],
        "first": [0],
        "joined": [0, 0, HEADS * size],
        "same": [0, 0, 0, 0],
        "matrix": [-1, HEADS * size],
    }
    arrays = {name: np.array(target, np.int64) for name, target in targets.items()}
    return {**arrays, "mask": np.triu(np.ones((2048, 2048), bool), 1)}


def feeds(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    tokens = sum(NEW)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

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
        "past_keys": floats(PAGES, PAGE_ROWS, CACHED, size),
        "past_values": floats(PAGES, PAGE_ROWS, CACHED, size),
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
    nodes: list[onnx.NodeProto], size: int = 32, dtype: str = "float32", outputs=OUTPUTS
) -> ir.Model:
    """The nodes between casts of float32 from and to ``dtype``, with bodies."""
    of_dtype, given, kind = ("rows", "past_keys", "past_values"), feeds(size), TYPES[dtype]
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
            "NPUSwiGlu": [1, "tokens", GATE],
            "NPUAddRmsNorm": [1, "tokens", 2 * GATE],
            "Reshape": [None] * (4 if node.input[-1] == "same" else 3),
        }.get(node.op_type)
        if node.input[-1] == "heads":
            shape = [1, "tokens", HEADS + 2 * CACHED, size]
        if shape is not None:
            infos += [value(name, kind, shape) for name in node.output if name != "rstd"]
        elif node.op_type == "Identity" and node.input[0] == "slots":
            infos.append(value(node.output[0], TensorProto.INT64, shapes["slots"]))
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
        [*(onnx.numpy_helper.from_array(a, n) for n, a in constants(size).items()), weight, gamma],
        value_info=infos,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("npu", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    attach_function_bodies(model)
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


def check_joined(model: ir.Model, folder: Any, arrays: dict[str, np.ndarray], dtype: str) -> None:
    """Compare the joined node with the nodes that it stands for."""
    expected = run(session_of(model, folder, NPU), arrays)
    assert join_groups(model) == {"PagedSelfAttention": 1}
    assert {node.op_type for node in model.graph} == {"Cast", "PagedSelfAttention"}
    for provider in PROVIDERS:
        found = run(session_of(model, folder, provider), arrays)
        for a, b in zip(found[:2], expected[:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=16 * 2.0 ** -BITS[dtype])
        np.testing.assert_array_equal(found[2], expected[2])  # values are copied


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("mode", "size"), [("half", 64), ("half", 20), ("interleave", 32)])
def test_a_layer_is_one_node(tmp_path, dtype, mode, size):
    check_joined(model_of(layer(mode), size, dtype), tmp_path, feeds(size), dtype)


def test_a_window_of_keys(tmp_path):
    nodes = layer(sparse_mode=4, pre_tokens=9, next_tokens=0)
    check_joined(model_of(nodes), tmp_path, feeds(32), "float32")


def test_many_tokens_in_parts_and_the_last_of_repeated_slots(tmp_path):
    """More elements than one thread takes; a slot belongs to one part, whose last token stays."""
    arrays = feeds(64)
    arrays["slots"][[0, 7, 30, 44]] = arrays["slots"][20]
    check_joined(model_of(layer(), 64), tmp_path, arrays, "float32")


GATED = [
    onnx_node("MatMul", "attended weight", "halves"),
    npu("NPUSwiGlu", "halves", "gated", dim=-1),
]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_gated_product_is_one_node(tmp_path, dtype):
    arrays, outputs = feeds(32), (*OUTPUTS, "gated")
    model = model_of([*layer(), *GATED], 32, dtype, outputs)
    expected = run(session_of(model, tmp_path, NPU), arrays)
    assert join_groups(model) == {"PagedSelfAttention": 1, "GatedMatMul": 1}
    for provider in PROVIDERS[: 2 if dtype == "bfloat16" else 3]:  # the CPU has no such MatMul
        found = run(session_of(model, tmp_path, provider), arrays)
        # The sums of a gate and its value are rounded once, after their product, instead of before.
        np.testing.assert_allclose(found[3], expected[3], rtol=0, atol=32 * 2.0 ** -BITS[dtype])


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (GATED, ("gated", "halves")),
        ([GATED[0], npu("NPUSwiGlu", "halves", "gated", dim=1)], ("gated",)),
        ([onnx_node("Neg", "weight", "computed"),
          onnx_node("MatMul", "attended computed", "halves"), GATED[1]], ("gated",)),
    ],
    ids=["halves are read", "another axis", "a computed matrix"],
)  # fmt: skip
def test_what_stays_apart_of_a_gated_product(nodes, outputs):
    model = model_of([*layer(), *nodes], outputs=(*OUTPUTS, *outputs))
    assert join_groups(model) == {"PagedSelfAttention": 1}


def normed(inputs: str = "halves residual gamma") -> list[onnx.NodeProto]:
    return [
        onnx_node("Identity", "weight", "computed"),
        onnx_node("MatMul", "attended computed", "residual"),
        onnx_node("MatMul", "attended weight", "halves"),
        npu("NPUAddRmsNorm", inputs, "normed rstd sum", epsilon=1e-3),
    ]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("inputs", ["halves residual gamma", "residual halves gamma"])
def test_a_normed_product_is_one_node(tmp_path, dtype, inputs):
    arrays, outputs = feeds(32), (*OUTPUTS, "normed", "sum")
    model = model_of([*layer(), *normed(inputs)], 32, dtype, outputs)
    expected = run(session_of(model, tmp_path, NPU), arrays)
    assert join_groups(model) == {"PagedSelfAttention": 1, "MatMulAddRmsNorm": 1}
    for provider in PROVIDERS[: 2 if dtype == "bfloat16" else 3]:  # the CPU has no such MatMul
        found = run(session_of(model, tmp_path, provider), arrays)
        for a, b in zip(found[3:], expected[3:], strict=True):
            # The sum is rounded once, and the product not at all.
            np.testing.assert_allclose(a, b, rtol=0, atol=32 * 2.0 ** -BITS[dtype])


@pytest.mark.parametrize(
    "outputs",
    [("normed", "halves"), ("normed", "rstd"), ("sum",)],
    ids=["the product is read", "rstd is read", "no norm"],
)
def test_what_stays_apart_of_a_normed_product(outputs):
    model = model_of([*layer(), *normed()], outputs=(*OUTPUTS, *outputs))
    assert join_groups(model) == {"PagedSelfAttention": 1}


def test_nothing_is_joined_without_a_paged_cache():
    """The provider finds a gated product itself."""
    nodes = [onnx_node("Identity", "rows", "attended"), *GATED]
    assert join_groups(model_of(nodes, outputs=("gated",))) == {}


def test_groups_that_say_the_same_share_a_function(tmp_path):
    arrays = feeds(32)
    names = {"keys": "keys_2", "values": "values_2", "attended": "attended_2"}
    again = renamed(layer(), names)
    window = renamed(layer(sparse_mode=4, pre_tokens=9, next_tokens=0), {n: f"{n}w" for n in names})
    outputs = [*OUTPUTS, *names.values(), *(f"{name}w" for name in names)]
    model = model_of([*layer(), *again, *window], outputs=outputs)
    expected = run(session_of(model, tmp_path, NPU), arrays)
    assert join_groups(model) == {"PagedSelfAttention": 3}
    joined = [node.overload for node in model.graph if node.op_type == "PagedSelfAttention"]
    assert joined == ["", "", "1"]
    for provider in PROVIDERS:
        found = run(session_of(model, tmp_path, provider), arrays)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=16 * 2.0**-23)


def renamed(nodes: list[onnx.NodeProto], names: dict[str, str]) -> list[onnx.NodeProto]:
    """Copies whose inner values have names of their own."""
    made = {name for node in nodes for name in node.output}
    mark = "".join(sorted(names.values()))
    names = {name: f"{name}_{mark}" for name in made} | names
    copies = []
    for original in nodes:
        copy = onnx.NodeProto.FromString(original.SerializeToString())
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        copy.name = copy.output[0]
        copies.append(copy)
    return copies


def test_groups_that_need_each_other_stay_apart(tmp_path):
    """Each of two layers attends with a cache that the other has written."""
    a, b = ({name: f"{name}_{group}" for name in OUTPUTS} for group in "ab")
    first = renamed(layer(), a | {"past_values": "of_b"})
    second = renamed(layer(), b | {"past_values": "of_a"})
    written = [onnx_node("Reshape", f"keys_{group} same", f"of_{group}") for group in "ab"]
    # All keys first, then what needs the other's.
    nodes = [*first[:6], *second[:6], *written, *first[6:], *second[6:]]
    outputs = [*a.values(), *b.values()]
    model = model_of(nodes, outputs=outputs)
    assert join_groups(model) == {}
    run(session_of(model, tmp_path, NPU), feeds(32))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (layer(), (*OUTPUTS, "rotated_k")),
        ([n if n.name != "rotated_k" else npu("NPURotaryMul", "k sin cos", "rotated_k")
          for n in layer()], OUTPUTS),
        ([n if n.name != "values" else npu("NPUScatterNdUpdate", "past_values slots2 new_v",
                                           "values") for n in layer()], OUTPUTS),
        (layer(softmax_lse_flag=1), OUTPUTS),
        ([*layer(), onnx_node("Neg", "query", "negated")], (*OUTPUTS, "negated")),
        # As int8 activations of a part for tensor parallelism need it.
        ([n if n.name != "attended" else onnx_node("Reshape", "unsqueezed matrix", "attended")
          for n in layer()], OUTPUTS),
    ],
    ids=["inner value", "other tables", "other slots", "another result", "read elsewhere",
         "a matrix of rows"],
)  # fmt: skip
def test_what_stays_apart(nodes, outputs):
    slots = onnx_node("Identity", "slots", "slots2")
    model = model_of([slots, *nodes], outputs=outputs)
    assert join_groups(model) == {}


def test_caches_are_updated_in_place(tmp_path):
    arrays = feeds(32)
    model = model_of(layer())
    join_groups(model)
    session = session_of(model, tmp_path, PROVIDERS[1])
    expected = run(session, arrays)
    binding = session.io_binding()
    caches = {"past_keys": "keys", "past_values": "values"}
    for each in session.get_inputs():
        name = each.name.removesuffix("_32")
        value = ort.OrtValue.ortvalue_from_numpy(arrays[name])
        binding.bind_ortvalue_input(each.name, value)
        if name in caches:
            binding.bind_ortvalue_output(f"{caches[name]}_32", value)
    binding.bind_output("attended_32", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[-1].numpy(), expected[0])
    np.testing.assert_array_equal(arrays["past_keys"], expected[1])
    np.testing.assert_array_equal(arrays["past_values"], expected[2])


def test_a_captured_run_reads_lengths_at_each_replay(tmp_path):
    arrays = feeds(32)
    model = model_of(layer())
    join_groups(model)
    plain = session_of(model, tmp_path, NPU)
    session = session_of(model, tmp_path, (NPU, {"enable_npu_graph": "1"}))
    binding, bound = session.io_binding(), {}
    for each in session.get_inputs():
        name = each.name.removesuffix("_32")
        bound[name] = onnxruntime_npu.ortvalue_from_numpy(arrays[name])
        binding.bind_ortvalue_input(each.name, bound[name])
    outputs = [onnxruntime_npu.ortvalue_from_numpy(array) for array in run(plain, arrays)]
    for each, value in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(each.name, value)
    for lengths in ([3, 34, 45, 32], [3, 1, 40, 1], [3, 20, 41, 9]):
        arrays["lengths"] = np.array(lengths)
        given = [ort.OrtValue.ortvalue_from_numpy(arrays["lengths"])]
        ort.copy_tensors(given, [bound["lengths"]])
        session.run_with_iobinding(binding)
        for a, b in zip(outputs, run(plain, arrays), strict=True):
            np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(a), b)


@pytest.mark.parametrize("provider", PROVIDERS[:2], ids=["device", "host"])
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("slots", np.array([[PAGES, 0]] * sum(NEW)), r"expected indices in \[0, 7\) for axis 0"),
        ("slots", np.array([[0, -1]] * sum(NEW)), r"expected indices in \[0, 32\) for axis 1"),
        ("slots", np.array([[0, 0]] * 3), r"expected slots of shape \[45, 2\], got \[3, 2\]"),
        ("cos", np.zeros((1, 44, 1, 32), np.float32), r"expected cos that broadcasts to"),
        ("lengths", np.array([3, 97, 45, 32]), r"expected key_lengths"),
        ("ends", np.array([3, 4, 44, 46]), r"expected actual_seq_lengths"),
        ("table", np.zeros((3, 3), np.int32), r"expected one row of block_table per entry"),
    ],
)
def test_wrong_inputs_are_refused_and_the_session_goes_on(tmp_path, provider, name, wrong, message):
    arrays = feeds(32)
    model = model_of(layer())
    join_groups(model)
    session = session_of(model, tmp_path, provider)
    expected = run(session, arrays)
    with pytest.raises(Exception, match=rf"\[PagedSelfAttention\] {message}"):
        run(session, arrays | {name: wrong})
    for a, b in zip(run(session, arrays), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_converters_keep_attention_and_inline_both(tmp_path):
    arrays, outputs = feeds(32), (*OUTPUTS, "gated")
    model, apart = (model_of([*layer(), *GATED], outputs=outputs) for _ in range(2))
    expected = run(session_of(apart, tmp_path, NPU), arrays)
    join_groups(model)
    types = {node.op_type for node in read(ir.to_proto(model)).graph}
    # The product's weight is found by a scheme; what was joined with it is as a converter reads it.
    assert {"PagedSelfAttention", "MatMul"} <= types and "GatedMatMul" not in types
    inline(ir.to_proto(model), tmp_path / "plain.onnx")
    plain = onnx.load(tmp_path / "plain.onnx")
    assert {node.domain for node in plain.graph.node} == {""} and not plain.functions
    found = run(ort.InferenceSession(tmp_path / "plain.onnx", providers=[CPU]), arrays)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=32 * 2.0**-23)
