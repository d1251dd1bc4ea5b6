"""The claims of the standard operators and of com.microsoft's against their schemas."""

from __future__ import annotations

import re
from functools import cache

import onnx
import pytest
from onnx_nodes import FIXED_WIDTH
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state
from onnxruntime_npu import _C

# Operators and versions that onnxruntime adds to ONNX's domain.
NOT_OF_ONNX = {("SimplifiedLayerNormalization", 1), ("LayerNormalization", 1)}
MICROSOFT = [op for op in _C.registered_ops() if op["domain"] == "com.microsoft"]
MICROSOFT_SCHEMAS = {
    schema.name: schema
    for schema in ort_state.get_all_operator_schema()
    if schema.domain == "com.microsoft"
}
OPS = [
    op
    for op in _C.registered_ops()
    if op["domain"] == "" and (op["type"], op["since"]) not in NOT_OF_ONNX
]
# Later versions, which onnxruntime does not load yet, are not claimed.
NEWEST_OPSET = 27
ONNX_NAMES = {"float": "float32", "double": "float64"}


@cache
def standard_schemas() -> dict[str, list[onnx.defs.OpSchema]]:
    """The schemas of onnx's operators up to the newest opset by name, oldest first."""
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= NEWEST_OPSET:
            found.setdefault(schema.name, []).append(schema)
    return {
        name: sorted(each, key=lambda schema: schema.since_version) for name, each in found.items()
    }


def versions(op_type: str) -> list[onnx.defs.OpSchema]:
    """The schemas of an operator up to the newest opset, oldest first."""
    return standard_schemas().get(op_type, [])


def allowed(schema, type_str: str) -> set[str]:
    """The element types of a formal parameter of onnx's or onnxruntime's schema."""
    constraints = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    types = constraints.get(type_str, [type_str])
    names = (t.removeprefix("tensor(").removesuffix(")") for t in types)
    return {ONNX_NAMES.get(name, name) for name in names}


@pytest.mark.parametrize("op", OPS, ids=lambda op: f"{op['type']}-{op['since']}-{op['until']}")
def test_definition_matches_the_schema(op: dict) -> None:
    claimed = [s for s in versions(op["type"]) if op["since"] <= s.since_version <= op["until"]]
    assert claimed and claimed[0].since_version == op["since"]
    assert claimed[-1].since_version == op["until"]
    for schema in claimed:
        names = [parameter.name for parameter in schema.inputs]
        assert [a["name"] for a in op["inputs"]][: len(names)] == names, schema.since_version
        assert [a["name"] for a in op["outputs"]] == [p.name for p in schema.outputs]
        for argument, parameter in zip(op["inputs"], schema.inputs, strict=False):
            optional = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Optional
            variadic = parameter.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
            assert argument["variadic"] == variadic
            # Some inputs became optional later (C of Gemm): one definition serves all versions.
            assert argument["optional"] == optional or schema is not claimed[-1]
            assert argument["optional"] or not optional
        legacy = {"consumed_inputs"}
        assert set(schema.attributes) - legacy <= set(op["attributes"]), schema.since_version
    newest = claimed[-1]
    assert len(newest.inputs) == len(op["inputs"])
    for argument, parameter in zip(
        [*op["inputs"], *op["outputs"]], [*newest.inputs, *newest.outputs], strict=True
    ):
        # A type that only later versions accept never occurs in nodes of an earlier one.
        ever = {
            t
            for s in versions(op["type"])
            for p in [*s.inputs, *s.outputs]
            for t in allowed(s, p.type_str)
            if p.name == parameter.name
        }
        assert set(argument["dtypes"]) <= ever, argument["name"]
        missing = allowed(newest, parameter.type_str) & set(FIXED_WIDTH) - set(argument["dtypes"])
        assert not missing or (op["type"], argument["name"]) in LESS, (argument["name"], missing)


# Types that ONNX accepts and the NPU leaves to the CPU.
LESS = {
    ("Col2Im", "input"),  # bool
    ("Col2Im", "output"),
    *(("DeformConv", name) for name in ("X", "W", "offset", "B", "mask", "Y")),  # float64
    *(("RoiAlign", name) for name in ("X", "rois", "Y")),  # float64
    ("Einsum", "Inputs"),  # 8- and 16-bit integers
    ("Einsum", "Output"),
    ("OneHot", "indices"),  # other integers and floats than int32, int64, float32
    ("OneHot", "depth"),
    *(("Attention", name) for name in ("Q", "K", "V", "past_key", "past_value")),
    ("Attention", "attn_mask"),  # integers, float64
    *(("Attention", name) for name in ("Y", "present_key", "present_value", "qk_matmul_output")),
    ("LayerNormalization", "Mean"),  # bfloat16 statistics (stash_type 16)
    ("LayerNormalization", "InvStdDev"),
    ("QuantizeLinear", "y_scale"),  # int32
    ("GridSample", "X"),  # integers, bool
    ("GridSample", "Y"),
}


# What has no kernel in the registry, and why.
NO_KERNEL = {
    "If": "a kernel of the provider: ep/provider/control_flow.cc",
    "Loop": "the same",
    "Scan": "the same, but for version 8, whose batches nothing writes any more",
    "Constant": "onnxruntime makes it an initializer",
    "CenterCropPad": "a function: onnxruntime runs its body",
    "CausalConvWithState": "a function",
    "LinearAttention": "a function",
    "ImageDecoder": "decoders of seven file formats; onnxruntime's CPU provider has none either",
}


def test_every_operator_of_onnx_has_a_kernel() -> None:
    """Of each version from opset 7 on, but for sequences, optionals and strings."""
    names = {
        s.name
        for s in onnx.defs.get_all_schemas_with_history()
        if s.domain == ""
        and s.since_version <= NEWEST_OPSET
        and (s.name, s.since_version) not in NOT_OF_ONNX  # registered with onnx by `convert`
    }
    claimed: dict[str, list] = {name: [] for name in names}
    for op in OPS:
        claimed[op["type"]].append(range(op["since"], op["until"] + 1))
    missing = set()
    for name in names:
        if name != "ReverseSequence" and re.search("Sequence|Optional|String|Regex", name):
            continue
        schemas = [s for s in versions(name) if not s.deprecated]
        at_7 = [s.since_version for s in schemas if s.since_version <= 7]
        current = {s.since_version for s in schemas if s.since_version > 7} | set(at_7[-1:])
        if any(all(v not in of for of in claimed[name]) for v in current):
            missing.add(name)
    assert missing == set(NO_KERNEL)
    functions = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""
                 and (s.has_function or s.has_context_dependent_function)}  # fmt: skip
    assert {name for name, why in NO_KERNEL.items() if "function" in why} <= functions


@pytest.mark.parametrize("op_type", sorted({op["type"] for op in OPS}))
def test_every_version_since_opset_13_is_claimed(op_type: str) -> None:
    schemas = [schema for schema in versions(op_type) if not schema.deprecated]
    at_13 = [s.since_version for s in schemas if s.since_version <= 13]
    current = {s.since_version for s in schemas if s.since_version >= 13} | set(at_13[-1:])
    ranges = [(op["since"], op["until"]) for op in OPS if op["type"] == op_type]
    assert not [v for v in current if not any(low <= v <= high for low, high in ranges)]


@pytest.mark.parametrize("op", MICROSOFT, ids=lambda op: op["type"])
def test_definition_matches_the_schema_of_onnxruntime(op: dict) -> None:
    schema = MICROSOFT_SCHEMAS[op["type"]]
    arguments = [*op["inputs"], *op["outputs"]]
    parameters = [*schema.inputs, *schema.outputs]
    assert [a["name"] for a in arguments] == [p.name for p in parameters]
    assert set(op["attributes"]) == set(schema.attributes)
    for argument, parameter in zip(arguments, parameters, strict=True):
        assert argument["optional"] == ("Optional" in str(parameter.option))
        assert argument["variadic"] == ("Variadic" in str(parameter.option))
        assert set(argument["dtypes"]) <= allowed(schema, parameter.typeStr), argument["name"]
