"""Nodes of a layer with a paged cache become one, which computes what its function does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnxruntime_npu.converters.inline import inline
from onnxruntime_npu.converters.model_file import read
from onnxruntime_npu.onnx_models.join_groups import join_groups

from .joined_layers import (
    BITS,
    CPU,
    NEW,
    NPU,
    OUTPUTS,
    PAGES,
    PROVIDERS,
    TYPES,
    feeds,
    layer,
    model_of,
    npu,
    onnx_node,
    run,
    session_of,
)


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
