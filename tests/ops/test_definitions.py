"""Processing of definitions: schemas, contradictions, op types, bodies, registration."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import onnxruntime_npu
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime_npu import _C
from onnxruntime_npu.errors import ArgumentError, UnsupportedError
from onnxruntime_npu.opdef import (
    FLOATS,
    DefinitionError,
    Op,
    TypeAlias,
    TypeCodes,
    TypedBy,
    attach_function_bodies,
    load_definitions,
    npu_op,
)
from onnxruntime_npu.opdef.inference import infer_outputs
from onnxruntime_npu.opdef.node_types import node_types
from onnxruntime_npu.opdef.schema import SchemaError, parse_schema

SCHEMAS = [
    "f(Tensor self) -> Tensor",
    "f(Tensor(a!) self, Tensor? bias=None, *, Tensor[] more, Tensor[]? maybe=None) -> Tensor(a!)",
    'f(Tensor x, str mode="a, b", str? other=None, bool flag=True, bool[3] mask) -> ()',
    "f(SymInt[]? lengths=None, int[2] stride=1, int[]? axes=None, SymInt n=20) -> Tensor[]",
    "f(Scalar alpha=1, Scalar beta=0.5, float eps=1e-06, float? p=None, int i=-1) -> Tensor",
    "f(ScalarType? dtype=None, Device? device=None, Generator? generator=None) -> Tensor",
    "f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    "f(Tensor x) -> (Tensor values, Tensor indices)",
]


@pytest.mark.parametrize("text", SCHEMAS)
def test_schema_is_parsed_as_torch_parses_it(text: str) -> None:
    schema = parse_schema(text)
    assert parse_schema(str(schema)) == schema
    ours, torchs = torch._C.parse_schema(str(schema)), torch._C.parse_schema(text)
    assert str(ours) == str(torchs)
    assert [a.name for a in schema.arguments] == [a.name for a in torchs.arguments]
    assert [a.keyword_only for a in schema.arguments] == [a.kwarg_only for a in torchs.arguments]


@pytest.mark.parametrize(
    "text",
    [
        "f",
        "f(Tensor x",
        "f(Tensor x) Tensor",
        "f(Tensor) -> Tensor",
        "f(Complex x) -> Tensor",
        "f(Tensor x, Tensor x) -> Tensor",
        "f(int i=one) -> Tensor",
        "f(str s=half) -> Tensor",
        "f(Tensor x) -> (Tensor, Tensor",
        "f(Tensor x) -> Tensor; drop",
    ],
)
def test_bad_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="expected"):
        parse_schema(text)


def _op(schema: str = "npu_t(Tensor self, float a=1.0) -> Tensor", **changes: object) -> Op:
    arguments = {"onnx": "NPUT", "dtypes": {"self": FLOATS, "y": FLOATS}, **changes}
    return npu_op(schema, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtypes": {"self": FLOATS}}, "element types of 'y'"),
        ({"dtypes": {"self": FLOATS, "y": ["float"]}}, "list of dtype names for 'y'"),
        ({"dtypes": {"self": FLOATS, "y": FLOATS, "z": FLOATS}}, r"\['z'\]"),
        ({"outputs": ["y", "z"]}, "1 distinct output names"),
        ({"may_alias": [("x", "y")]}, "may_alias"),
        ({"cpu": ["length"]}, "'length'"),
        ({"typings": [{"self": "int8"}]}, "'typings'.*'int8' for 'self'"),
        ({"typings": [{"x": "float32"}]}, "'typings'.*for 'x'"),
        ({"typings": [{"self": "absent"}]}, "'typings'.*'absent' for 'self'"),
        ({"inplace": "npu_t_(Tensor(a!) self) -> Tensor(a!)"}, "twin"),
        ({"type_codes": {"b": TypeCodes({})}}, "'type_codes' to name arguments, got 'b'"),
        ({"type_codes": {"a": TypeCodes({"int8": 2})}}, "'type_codes' to name integers"),
        ({"dtype_notes": {"b": "note"}}, "'dtype_notes' to name arguments, got 'b'"),
        ({"typed_by": {"y": TypedBy("a", {})}}, "'typed_by' to name outputs, .*'y' by 'a'"),
        ({"schema": "npu_t(Tensor self) -> int"}, "result of int"),
        ({"schema": "npu_t(Tensor[] self, Tensor a) -> Tensor"}, "'a'|tensor list"),
    ],
)
def test_contradictory_definition_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        _op(**changes)


@pytest.mark.parametrize("given", [torch.qint8, torch.int8, 1, 12, "int8"])
def test_type_argument_is_the_nodes_code_and_the_references_name(given: object) -> None:
    op = npu_op(
        "npu_t(Tensor x, *, int? kind=None) -> Tensor",
        onnx="NPUT",
        dtypes={"x": FLOATS, "y": ["int8", "int32"]},
        type_codes={"kind": TypeCodes({"int8": 2, "int4": 29}, attribute="type")},
    )
    op.reference(lambda x, kind: kind)
    assert op.attribute_values({"x": None, "kind": given}) == {"type": 2}
    assert op.call_reference(None, kind=given) == ("int8",)
    assert op.attribute_values({"x": None, "kind": None}) == {}
    with pytest.raises(
        ArgumentError, match=r"\[npu_t\] expected kind to name int8 or int4, got 300"
    ):
        op.call_reference(None, kind=300)


def test_reference_signature_matches_the_schema() -> None:
    with pytest.raises(DefinitionError, match=r"\[npu_t\] expected the reference to take"):
        _op().reference(lambda x, a=1.0: x)


def test_documentation_names_the_arguments_as_the_signature_does() -> None:
    for name in ("npu_rms_norm", "npu_rms_norm_backward", "npu_transpose"):
        function = getattr(onnxruntime_npu, name)
        text = "".join(line for line in function.__doc__.split("\n") if "Schema:" not in line)
        assert "input" in inspect.signature(function).parameters and "input" in text
        assert re.search(r"\bself\b", text) is None, text


def test_family_definitions_can_share_a_helper_module(tmp_path: Path) -> None:
    family = tmp_path / "sharing"
    family.mkdir()
    (family / "_width.py").write_text("OUTPUTS = ['y']\n")
    (family / "npu_shares.py").write_text(
        "from onnxruntime_npu.opdef import npu_op\n"
        "from ._width import OUTPUTS\n"
        "op = npu_op('npu_shares(Tensor x) -> Tensor', onnx='NPUShares', outputs=OUTPUTS,\n"
        "    dtypes={'x': ['int8'], 'y': ['int8']})\n"
    )
    assert list(load_definitions([tmp_path])) == ["npu_shares"]


def test_call_arguments_bind_like_python() -> None:
    op = _op()
    assert op.bind((1,), {}) == {"self": 1, "a": 1.0}
    assert op.bind((), {"input": 1, "a": 2.0}) == {"self": 1, "a": 2.0}
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"b": 1}), ((1,), {"self": 1})]:
        with pytest.raises(TypeError, match=r"\[npu_t\]"):
            op.bind(args, kwargs)


def test_written_arguments_are_outputs() -> None:
    op = npu_op(
        "npu_w(Tensor x, Tensor(a!) cache, Tensor(b!) seen) -> (Tensor, Tensor(b!))",
        onnx="NPUW",
        outputs=["y", "seen_out", "cache_out"],
        dtypes={"x": FLOATS, "cache": FLOATS, "seen": ["bool"], "y": FLOATS},
    )
    assert [(o.name, o.mutates) for o in op.outputs] == [
        ("y", None),
        ("seen_out", "seen"),
        ("cache_out", "cache"),
    ]
    assert op.mutable_alias == ((2, 1), (1, 2))


def test_op_type_can_be_shared_by_operators_of_different_arity() -> None:
    one = _op()
    two = npu_op(
        "npu_u(Tensor x1, Tensor x2) -> (Tensor, Tensor)",
        onnx="NPUU",
        outputs=["y", "z"],
        dtypes={name: ["int8"] for name in ("x1", "x2", "y", "z")},
        aliases=[TypeAlias("NPUT", inputs=2)],
    )
    union = node_types([one, two])["NPUT"]
    assert union.op_for(1) is one and union.op_for(2) is two
    assert union.min_inputs == 1 and [x.optional for x in union.inputs] == [False, True]
    assert set(union.inputs[0].dtypes) == {*FLOATS, "int8"} and len(union.outputs) == 2
    clash = _op("npu_v(Tensor self) -> Tensor", onnx="NPUV", aliases=["NPUT"])
    with pytest.raises(DefinitionError, match="NPUT means npu_t, npu_v"):
        node_types([one, clash])


def test_node_may_have_attributes_that_the_operator_ignores() -> None:
    op = _op(ignored_attributes=["dtype"])
    assert "dtype" not in {a.name for a in op.attributes}
    attribute = {a.name: a for a in node_types([op])["NPUT"].attributes}["dtype"]
    assert attribute.kind == "int" and not attribute.required and attribute.default is None


def test_op_type_may_take_the_inputs_in_another_order() -> None:
    op = npu_op(
        "npu_t(Tensor x, Tensor? bias, Tensor scale) -> Tensor",
        onnx="NPUT",
        dtypes={name: FLOATS for name in ("x", "bias", "scale", "y")},
        may_alias=[("bias", "y")],
        aliases=[TypeAlias("NPUTV2", order=("x", "scale", "bias"))],
    )
    op.function(lambda b, call, x, bias, scale: (x, bias, scale))
    types = node_types([op])
    assert types["NPUT"].op_for(3) is op
    other = types["NPUTV2"]
    assert [(x.name, x.optional) for x in other.inputs] == [
        ("x", False),
        ("scale", False),
        ("bias", True),
    ]
    assert (other.min_inputs, other.may_alias) == (2, ((2, 0),))
    body = other.op_for(3).body_function
    assert body and body(None, None, "x", "scale", "bias") == ("x", "bias", "scale")
    with pytest.raises(DefinitionError, match="expected the order of NPUA to name every input"):
        _op(aliases=[TypeAlias("NPUA", order=("self", "other"))])


def test_node_may_call_an_attribute_otherwise() -> None:
    op = _op(attribute_names={"a": "alpha"})
    assert [(a.name, a.argument.name) for a in op.attributes] == [("alpha", "a")]
    assert op.attribute_values(op.bind((1, 2.0), {})) == {"alpha": 2.0}
    with pytest.raises(DefinitionError, match="expected 'attribute_names' to name arguments"):
        _op(attribute_names={"b": "beta"})


def _model(nodes: list[onnx.NodeProto], **dtypes: int) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, t, None) for n, t in dtypes.items()]
    outputs = [helper.make_tensor_value_info(n.output[0], 1, None) for n in nodes[-1:]]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("npu", 1)],
        ir_version=9,
    )


def _rms(x: str, gamma: str, y: str, **attributes: float) -> onnx.NodeProto:
    return helper.make_node("NPURmsNorm", [x, gamma], [y], domain="npu", **attributes)


def test_each_specialisation_has_one_body() -> None:
    nodes = [
        _rms("x", "g", "a"),
        _rms("a", "g", "b", epsilon=1e-6),  # the default: the same body
        _rms("x", "g", "c", epsilon=1e-3),
        _rms("h", "g", "d"),
    ]
    nodes[0].name = "first"
    infos = [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 8])]
    model = _model(nodes, x=TensorProto.FLOAT, g=TensorProto.FLOAT, h=TensorProto.FLOAT16)
    for value in model.graph.input:
        for dim in [8] if value.name == "g" else ["n", 8]:
            named = value.type.tensor_type.shape.dim.add()
            if isinstance(dim, int):
                named.dim_value = dim
            else:
                named.dim_param = dim
    model.graph.value_info.extend(infos)
    assert attach_function_bodies(model) == []
    assert [n.overload for n in model.graph.node] == ["", "", "1", "2"]
    assert [f.overload for f in model.functions] == ["", "1", "2"]
    assert model.ir_version >= 10
    attach_function_bodies(model)  # again: nothing to do
    assert len(model.functions) == 3


def test_missing_value_types_are_inferred() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), _rms("h", "g", "y")]
    model = _model(nodes, x=TensorProto.FLOAT, g=TensorProto.FLOAT)
    for value, dims in zip(model.graph.input, ([2, 8], [8]), strict=True):
        for d in dims:
            value.type.tensor_type.shape.dim.add().dim_value = d
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    attach_function_bodies(model)
    cast = [n for n in model.functions[0].node if n.op_type == "Cast"][-1]
    assert cast.attribute[0].i == TensorProto.FLOAT16


def test_unknown_operator_and_untyped_input_are_reported() -> None:
    node = helper.make_node("NPUNoSuchThing", ["x"], ["y"], domain="npu")
    with pytest.raises(DefinitionError, match="'NPUNoSuchThing'"):
        attach_function_bodies(_model([node], x=1))
    nodes = [helper.make_node("Mystery", ["x"], ["z"], domain="other"), _rms("z", "x", "y")]
    with pytest.raises(DefinitionError, match="element type of 'z'"):
        attach_function_bodies(_model(nodes, x=1))


def test_symbolic_dimensions_are_followed() -> None:
    from onnxruntime_npu.opdef import all_ops

    op = all_ops()["npu_rms_norm"]
    inputs = [("float16", ["batch", None, 64]), ("float32", [64])]
    assert infer_outputs(op, inputs, {}) == [
        ("float16", ["batch", None, 64]),
        ("float32", ["batch", None, 1]),
    ]
    assert infer_outputs(op, [("float32", [2, 8]), ("float32", [4])], {}) is None


def test_torch_schema_matches_torch_npu() -> None:
    assert str(torch.ops.npu.npu_rms_norm.default._schema) == (
        "npu::npu_rms_norm(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07)"
        " -> (Tensor, Tensor)"
    )
    assert str(torch.ops.npu.npu_scatter_nd_update_.default._schema) == (
        "npu::npu_scatter_nd_update_(Tensor(a!) input, Tensor indices, Tensor updates)"
        " -> Tensor(a!)"
    )


def test_first_argument_may_be_called_self_or_input() -> None:
    x, gamma = torch.randn(2, 8), torch.randn(8)
    want = onnxruntime_npu.npu_rms_norm(x, gamma)
    for got in (
        onnxruntime_npu.npu_rms_norm(input=x, gamma=gamma),
        onnxruntime_npu.npu_rms_norm(self=x, gamma=gamma),
    ):
        assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_in_place_call_on_a_view_updates_its_base() -> None:
    base = torch.zeros(4, 6)
    view = base.t()[1:3]
    onnxruntime_npu.npu_scatter_nd_update_(view, torch.tensor([[1]]), torch.ones(1, 4))
    assert torch.equal(base[:, 2], torch.ones(4)) and base.sum() == 4


def test_each_thread_gets_its_own_results_and_errors() -> None:
    gamma = torch.randn(64)
    inputs = [torch.randn(3 + i, 64) for i in range(8)]
    want = [onnxruntime_npu.npu_rms_norm(x, gamma)[0] for x in inputs]

    def work(i: int) -> bool:
        for _ in range(50):
            if i % 4 == 3:
                with pytest.raises(ArgumentError, match="trailing"):
                    onnxruntime_npu.npu_rms_norm(inputs[i], torch.randn(3))
            elif not torch.equal(onnxruntime_npu.npu_rms_norm(inputs[i], gamma)[0], want[i]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_kernel_errors_reach_the_caller_once() -> None:
    data, bad = torch.zeros(3, 2), torch.tensor([[7]])
    with pytest.raises(RuntimeError, match=r"\[npu_scatter_nd_update\]"):
        onnxruntime_npu.npu_scatter_nd_update(data, bad, torch.ones(1, 2))
    out = onnxruntime_npu.npu_scatter_nd_update(data, torch.tensor([[1]]), torch.ones(1, 2))
    assert torch.equal(out[1], torch.ones(2))


def test_private_kernel_entry_refuses_bad_arguments() -> None:
    kernel = _C.Kernel("npu", "NPURmsNorm", 1, {"epsilon": 1e-6}, 2, 2)

    def allocate(i: int, dtype: int, shape: tuple[int, ...]) -> int:
        raise AssertionError("nothing is allocated for a refused call")

    x = torch.randn(2, 8)
    good = (x.data_ptr(), 1, (2, 8))
    for bad in [
        (x.data_ptr(), 999, (2, 8)),
        (x.data_ptr(), 8, (2, 8)),
        (x.data_ptr(), 1, (-2, -8)),
        (0, 1, (2, 8)),
        (x.data_ptr(), 1, (2**62, 2**62)),
        (x.data_ptr(), 1, (1,) * 40),
        (x.data_ptr(), 1),
    ]:
        with pytest.raises(ValueError):
            kernel.run([bad, good], allocate)
    with pytest.raises(ValueError):
        kernel.run([good, good], allocate, [(0, 5)])
    with pytest.raises(UnsupportedError, match="NPUNoSuchThing"):
        _C.Kernel("npu", "NPUNoSuchThing", 1, {}, 1, 1)


def _python(code: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_operators_are_registered_when_torch_is_imported_later() -> None:
    printed = _python("""
        import sys
        import onnxruntime_npu
        assert "torch" not in sys.modules
        import torch
        print(torch.ops.npu.npu_rms_norm.default)
    """)
    assert "npu.npu_rms_norm.default" in printed


def test_real_torch_npu_takes_precedence_with_one_warning() -> None:
    printed = _python("""
        import sys, types, torch
        sys.modules["torch_npu"] = types.ModuleType("torch_npu")
        import onnxruntime_npu
        from onnxruntime_npu.opdef.torch_library import register
        assert register() is False and register() is False
        assert not hasattr(torch.ops.npu, "npu_rms_norm")
    """)
    assert printed.count("torch_npu is loaded and owns") == 1


def test_build_step_needs_no_installed_packages(tmp_path: Path) -> None:
    # A build compiles while pip installs: torch may be absent, or half unpacked.
    package = Path(onnxruntime_npu.__file__).parent
    roots = package.parent.parent / "contrib_ops"
    command = [sys.executable, "-S", str(package / "opdef" / "codegen.py"), str(roots)]
    command += [str(tmp_path / "table.cc"), str(tmp_path / "headers"), str(tmp_path / "ops.pyi")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "def npu_rms_norm" in (tmp_path / "ops.pyi").read_text()


def test_build_step_reports_what_is_wrong_with_a_definition(tmp_path: Path) -> None:
    package = Path(onnxruntime_npu.__file__).parent
    definition = tmp_path / "ops" / "family" / "npu_broken.py"
    definition.parent.mkdir(parents=True)
    definition.write_text("from onnxruntime_npu.opdef import npu_op\nop = npu_op('f(')\n")
    command = [sys.executable, str(package / "opdef" / "codegen.py"), str(tmp_path / "ops")]
    command += [str(tmp_path / "table.cc"), str(tmp_path / "headers"), str(tmp_path / "ops.pyi")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "npu_broken.py" in done.stderr and not (tmp_path / "table.cc").exists()
