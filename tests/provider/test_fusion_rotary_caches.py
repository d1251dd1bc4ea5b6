"""A joined projection that is split, rotated and scattered into caches as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime_npu
import pytest
from fusion_models import (
    BFLOAT16,
    ONNX_TYPES,
    fused_nodes,
    model_of,
    node,
    run_both,
    without_optimizations,
)
from provider_models import npu_session

FUSED = "npu.fused:RotateIntoCaches"
HEADS, CACHED, CAPACITY = 4, 2, 9
GROUP = ("view", "heads", "q", "rotated_q", "rotated_k", "keys", "values")


def npu_node(op: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    out = node(op, inputs, outputs, **attributes)
    out.domain = "npu"
    return out


def layer(
    mode: str = "half", perm=(0, 2, 1, 3), tables=("cos sin", "cos sin")
) -> list[onnx.NodeProto]:
    return [
        node("Reshape", "x shape", "view"),
        node("Transpose", "view", "heads", perm=list(perm)),
        node("Split", "heads parts", "q k v", axis=1),
        npu_node("NPURotaryMul", f"q {tables[0]}", "rotated_q", rotary_mode=mode),
        npu_node("NPURotaryMul", f"k {tables[1]}", "rotated_k", rotary_mode=mode),
        npu_node("NPUScatterNdUpdate", "past_keys indices rotated_k", "keys"),
        npu_node("NPUScatterNdUpdate", "past_values indices v", "values"),
    ]


def places(batch: int, tokens: int, start: int = 3, dtype=np.int64) -> np.ndarray:
    """The indices [batch, CACHED, tokens, 3] that write token t to row start + t."""
    b, h, t = np.meshgrid(np.arange(batch), np.arange(CACHED), np.arange(tokens), indexing="ij")
    return np.stack([b, h, t + start], axis=-1).astype(dtype)


def feeds_of(rng, dtype, size: int, batch: int = 2, tokens: int = 5, table_dtype=None):
    def normal(*shape, as_dtype=dtype):
        return rng.standard_normal(shape).astype(np.float32).astype(as_dtype)

    return {
        "x": normal(batch, tokens, (HEADS + 2 * CACHED) * size),
        "cos": normal(batch, 1, tokens, size, as_dtype=table_dtype or dtype),
        "sin": normal(1, 1, tokens, size, as_dtype=table_dtype or dtype),
        "past_keys": normal(batch, CACHED, CAPACITY, size),
        "past_values": normal(batch, CACHED, CAPACITY, size),
        "indices": places(batch, tokens),
    }


def constants_of(size: int) -> dict[str, np.ndarray]:
    return {
        "shape": np.array([0, 0, HEADS + 2 * CACHED, size]),
        "parts": np.array([HEADS, CACHED, CACHED]),
    }


OUTPUTS = ("rotated_q", "keys", "values")


def check_equal(fused, plain, dtype) -> None:
    """The same formula, of which either may contract another multiply-add: one rounding apart, of
    values up to 16.
    """
    bits = {np.dtype(np.float32): 23, np.dtype(np.float16): 10, BFLOAT16: 7}[np.dtype(dtype)]
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_allclose(
            a.astype(np.float32), b.astype(np.float32), rtol=0, atol=16 * 2.0**-bits
        )
    np.testing.assert_array_equal(fused[2], plain[2])


@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("size", [64, 20])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=str)
def test_one_pass_over_the_projection(rng, dtype, size, mode):
    feeds = feeds_of(rng, np.float32, size)
    floats = [name for name in feeds if name != "indices"]
    nodes = [
        *(node("Cast", f"{name}_32", name, to=ONNX_TYPES[np.dtype(dtype)]) for name in floats),
        *layer(mode),
        *(node("Cast", name, f"{name}_32", to=1) for name in OUTPUTS),
    ]
    feeds = {name if name == "indices" else f"{name}_32": array for name, array in feeds.items()}
    model = model_of(nodes, feeds, constants_of(size), [f"{name}_32" for name in OUTPUTS])
    fused, plain, groups = run_both(model, feeds)
    assert groups == dict.fromkeys(GROUP, FUSED)
    check_equal(fused, plain, dtype)


def test_tables_and_indices_of_other_types(rng):
    feeds = feeds_of(rng, np.float16, 32, table_dtype=np.float32)
    feeds["indices"] = feeds["indices"].astype(np.int32)
    model = model_of(layer(), feeds, constants_of(32), OUTPUTS)
    fused, plain, groups = run_both(model, feeds)
    assert groups == dict.fromkeys(GROUP, FUSED)
    check_equal(fused, plain, np.float16)


def test_no_tokens_leave_the_caches_as_they_are(rng):
    feeds = feeds_of(rng, np.float32, 32, tokens=0)
    fused = npu_session(
        model_of(layer(), feeds, constants_of(32), OUTPUTS), without_optimizations()
    ).run(None, feeds)
    assert fused[0].shape == (2, HEADS, 0, 32)
    np.testing.assert_array_equal(fused[1], feeds["past_keys"])
    np.testing.assert_array_equal(fused[2], feeds["past_values"])


def test_caches_are_updated_in_place(rng):
    feeds = feeds_of(rng, np.float32, 32)
    model = model_of(layer(), feeds, constants_of(32), OUTPUTS)
    session = npu_session(model, without_optimizations())
    _, keys, values = session.run(None, feeds)
    binding = session.io_binding()
    for name in ("x", "cos", "sin", "indices"):
        binding.bind_cpu_input(name, feeds[name])
    caches = {}
    for past, present in (("past_keys", "keys"), ("past_values", "values")):
        caches[present] = onnxruntime_npu.ortvalue_from_numpy(feeds[past])
        binding.bind_ortvalue_input(past, caches[present])
        binding.bind_ortvalue_output(present, caches[present])
    binding.bind_output("rotated_q")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(caches["keys"]), keys)
    np.testing.assert_array_equal(onnxruntime_npu.ortvalue_to_numpy(caches["values"]), values)


def test_the_last_of_repeated_places_wins(rng):
    feeds = feeds_of(rng, np.float32, 32)
    feeds["indices"][:, :, 1] = feeds["indices"][:, :, 3]
    feeds["indices"][1, 0, 2] = feeds["indices"][0, 1, 4]
    fused, plain, groups = run_both(model_of(layer(), feeds, constants_of(32), OUTPUTS), feeds)
    assert groups == dict.fromkeys(GROUP, FUSED)
    check_equal(fused, plain, np.float32)


def test_a_wrong_place_is_refused_and_the_session_goes_on(rng):
    feeds = feeds_of(rng, np.float32, 32)
    session = npu_session(
        model_of(layer(), feeds, constants_of(32), OUTPUTS), without_optimizations()
    )
    want = session.run(None, feeds)
    for place in (CAPACITY, -1):
        wrong = {**feeds, "indices": feeds["indices"].copy()}
        wrong["indices"][1, 1, 2, 2] = place
        with pytest.raises(
            Exception,
            match=rf"\[RotateIntoCaches\] expected indices in \[0, 9\) for axis 2, got {place}",
        ):
            session.run(None, wrong)
    for a, b in zip(session.run(None, feeds), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("cos", (3, 1, 5, 32)),
        ("sin", (1, 1, 4, 32)),
        ("indices", (2, CACHED, 4, 3)),
        ("past_values", (2, CACHED, 8, 32)),
    ],
)
def test_wrong_sizes_of_dynamic_inputs_are_refused(rng, name, shape):
    feeds = feeds_of(rng, np.float32, 32)
    model = onnx.load_from_string(model_of(layer(), feeds, constants_of(32), OUTPUTS))
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis in (0, 2) and not (value.name == "x" and axis == 2):
                dim.dim_param = f"{value.name}_{axis}"
        if value.name == "x":
            value.type.tensor_type.shape.dim[1].dim_param = "tokens"
    session = npu_session(model.SerializeToString(), without_optimizations())
    assert set(fused_nodes(session).values()) == {FUSED}
    session.run(None, feeds)
    with pytest.raises(Exception, match=r"\[RotateIntoCaches\] expected"):
        session.run(None, {**feeds, name: np.zeros(shape, feeds[name].dtype)})


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (layer(perm=(0, 2, 1, 3)), (*OUTPUTS, "k")),
        (layer(tables=("cos sin", "sin cos")), OUTPUTS),
        (
            [
                *layer()[:-1],
                npu_node("NPUScatterNdUpdate", "past_values indices rotated_k", "values"),
            ],
            OUTPUTS,
        ),
        (
            [*layer()[:-1], npu_node("NPUScatterNdUpdate", "past_values indices2 v", "values")],
            OUTPUTS,
        ),
    ],
    ids=[
        "keys are read before they are rotated",
        "other tables",
        "values are keys",
        "other places",
    ],
)
def test_what_stays_apart(rng, nodes, outputs):
    feeds = feeds_of(rng, np.float32, 32)
    feeds["indices2"] = places(2, 5, start=1)
    fused, plain, groups = run_both(model_of(nodes, feeds, constants_of(32), outputs), feeds)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)


def renamed(nodes: list[onnx.NodeProto], names: dict[str, str]) -> list[onnx.NodeProto]:
    copies = []
    for original in nodes:
        copy = onnx.NodeProto.FromString(original.SerializeToString())
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        copy.name = copy.output[0]
        copies.append(copy)
    return copies


def test_groups_that_need_each_other_are_not_both_one_node(rng):
    """Each of two groups reads a cache that the other has written: as one node each, neither could
    be the first.
    """
    own = ("view", "heads", "q", "k", "v", "rotated_q", "rotated_k", "keys", "values")
    a = renamed(layer(), {name: f"{name}_a" for name in own} | {"past_values": "of_b"})
    b = renamed(layer(), {name: f"{name}_b" for name in own} | {"past_values": "of_a"})
    # Of a known shape, as inputs are.
    written = [node("Reshape", f"keys_{group} cache", f"of_{group}") for group in "ab"]
    nodes = [*a[:-1], *b[:-1], *written, a[-1], b[-1]]
    outputs = [f"{name}_{group}" for group in "ab" for name in ("rotated_q", "keys", "values")]
    feeds = feeds_of(rng, np.float32, 32)
    constants = {**constants_of(32), "cache": np.array(feeds["past_keys"].shape)}
    fused, plain, groups = run_both(model_of(nodes, feeds, constants, outputs), feeds)
    assert len(groups) == len(layer())
    for x, y in zip(fused, plain, strict=True):
        # Sixteen units in the last place of 1: sums of float32 in another order.
        np.testing.assert_allclose(x, y, rtol=0, atol=16 * 2.0**-23)
