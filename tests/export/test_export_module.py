"""Export of arbitrary torch modules that call npu:: operators."""

from __future__ import annotations

import copy
import dataclasses
import json

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import SUPPORTED_NODES

NUMPY_DTYPES = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float16: np.float16,
    torch.float32: np.float32,
}
TYPES = {
    torch.bfloat16: "tensor(bfloat16)",
    torch.float16: "tensor(float16)",
    torch.float32: "tensor(float)",
}
PROVIDERS = ["NPUExecutionProvider", "CPUExecutionProvider"]


class Gated(torch.nn.Module):
    """A norm, a projection and a gate, in torch_npu's spelling."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gamma = torch.nn.Parameter(torch.rand(16))
        self.project = torch.nn.Linear(16, 24)

    def forward(self, x, shift=None):
        y, _ = torch.ops.npu.npu_rms_norm(x, self.gamma, epsilon=1e-5)
        y = torch.ops.npu.npu_swiglu(self.project(y), dim=-1)
        return y if shift is None else y + shift


@pytest.mark.parametrize("provider", PROVIDERS)
def test_exported_module_agrees_on_every_provider(tmp_path, provider):
    model, x = Gated().eval(), torch.randn(3, 5, 16)
    path = tmp_path / "gated.onnx"
    shapes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    report = onnxruntime_npu.export(model, (x,), path, dynamic_shapes=shapes)
    assert report.nodes["npu::NPURmsNorm"] == 1 and report.nodes["npu::NPUSwiGlu"] == 1
    assert report.without_body == []
    assert report.inputs == [{"name": "x", "dtype": "float", "shape": ["batch", "sequence", 16]}]
    written = json.loads((tmp_path / "gated.onnx.report.json").read_text())
    assert written["nodes"] == report.nodes
    session = ort.InferenceSession(path, providers=[provider])
    for shape in ((3, 5, 16), (1, 1, 16), (2, 9, 16)):
        given = torch.randn(shape)
        with torch.no_grad():
            expected = model(given).numpy()
        actual = session.run(None, {"x": given.numpy()})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


class Several(torch.nn.Module):
    """Takes tensors among numbers, strings and containers."""

    def forward(self, x, how, others, *more, factor=2):
        y = x + others["y"] if how == "add" else x - others["y"]
        return y * factor + sum(more)


BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length")
SIZES = {0: BATCH, 1: LENGTH}


@pytest.mark.parametrize(
    "shapes",
    [
        (SIZES, None, {"n": None, "y": SIZES}, (SIZES,), None),
        {"x": (BATCH, LENGTH), "how": None, "others": {"n": None, "y": SIZES}, "more": (SIZES,),
         "factor": torch.export.Dim.DYNAMIC},
    ],
)  # fmt: skip
def test_dimensions_have_the_names_given_beside_arguments_that_are_no_tensors(tmp_path, shapes):
    x = torch.randn(3, 5)
    args = (x, "add", {"n": 1, "y": x + 1}, x + 2)
    report = onnxruntime_npu.export(
        Several(), args, tmp_path / "m.onnx", kwargs={"factor": 3}, dynamic_shapes=shapes
    )
    tensors = [value for value in report.inputs if value["shape"]]
    assert [value["shape"] for value in tensors] == [["batch", "length"]] * 3
    assert report.outputs[0]["shape"] == ["batch", "length"]


def test_dimensions_have_the_names_of_a_collection_of_shapes(tmp_path):
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    shapes = torch.export.ShapesCollection()
    shapes[x] = SIZES
    shapes[y] = SIZES
    args = (x, "add", {"n": 1, "y": y})
    report = onnxruntime_npu.export(Several(), args, tmp_path / "m.onnx", dynamic_shapes=shapes)
    assert [value["shape"] for value in report.inputs] == [["batch", "length"]] * 2


def test_keyword_arguments_and_dtype(tmp_path):
    model, x = Gated(), torch.randn(2, 16)
    path = tmp_path / "gated.onnx"
    report = onnxruntime_npu.export(
        model, (x,), path, kwargs={"shift": torch.ones(12)}, dtype="float16"
    )
    assert report.dtype == "float16"
    assert model.gamma.dtype == torch.float32
    kinds = {v.type.tensor_type.elem_type for v in onnx.load(path).graph.input}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_data_dependent_branch_cannot_be_traced_and_is_named(tmp_path, capfd):
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    place = r"test_export_module.py:\d+ \(return x if x.sum\(\) > 0 else -x\)"
    reason = rf"torch.export cannot trace Branch: .*{place}: expected .*, got .*; use torch.where"
    with pytest.raises(ExportError, match=reason):
        onnxruntime_npu.export(Branch(), (torch.ones(2),), tmp_path / "b.onnx")
    assert capfd.readouterr() == ("", "")  # no graph, which torch prints


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": len}, "expected a torch.nn.Module, got builtin_function_or_method"),
        ({"model": torch.jit.script(torch.nn.ReLU())}, "expected a module of Python, got a Script"),
        ({"args": torch.ones(2)}, "expected args to be a tuple, got Tensor"),
        ({"path": "nowhere/model.onnx"}, "no such directory to write to: nowhere"),
        ({"dtype": "int8"}, "expected dtype float32, float16 or bfloat16, got 'int8'"),
        ({"opset": 5}, "expected an opset from 18 to 23, got 5"),
    ],
)
def test_bad_arguments(tmp_path, change, message):
    call = {"model": Gated(), "args": (torch.ones(2, 16),), "path": tmp_path / "m.onnx", **change}
    with pytest.raises(ArgumentError, match=message):
        onnxruntime_npu.export(call.pop("model"), call.pop("args"), call.pop("path"), **call)


def run_on_npu(path, *given):
    """Run a file of 16-bit floats; return the types of its outputs and their values in float32."""
    session = ort.InferenceSession(path, providers=["NPUExecutionProvider"])
    binding = session.io_binding()
    for value, tensor in zip(session.get_inputs(), given, strict=True):
        array = tensor.float().numpy().astype(NUMPY_DTYPES[tensor.dtype])
        binding.bind_ortvalue_input(value.name, onnxruntime_npu.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name, "npu")
    session.run_with_iobinding(binding)
    values = [onnxruntime_npu.ortvalue_to_numpy(value) for value in binding.get_outputs()]
    return [output.type for output in session.get_outputs()], [v.astype(np.float32) for v in values]


class Largest(torch.nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, 3)
        return values, indices, values.round() * 2


def test_operators_that_onnx_has_not_for_bfloat16_run_in_float32(tmp_path):
    x = (torch.randn(4, 32) * 5).bfloat16()
    onnxruntime_npu.export(Largest(), (x,), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert [node.op_type for node in model.graph.node if node.op_type in ("TopK", "Round")] == [
        "TopK",
        "Round",
    ]
    types, got = run_on_npu(tmp_path / "model.onnx", x)
    assert types == ["tensor(bfloat16)", "tensor(int64)", "tensor(bfloat16)"]
    for actual, expected in zip(got, Largest()(x), strict=True):
        np.testing.assert_array_equal(actual, expected.float().numpy())


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def results(path, *given):
    """Run a file on both providers; return the outputs of each."""
    runs = []
    for provider in PROVIDERS:
        session = ort.InferenceSession(path, providers=[provider])
        names = [value.name for value in session.get_inputs()]
        arrays = [tensor.numpy() for tensor in given]
        runs.append(session.run(None, dict(zip(names, arrays, strict=True))))
    return runs


HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


@HALVES
@pytest.mark.parametrize(
    "function",
    [
        torch.nn.functional.softplus,
        torch.nn.functional.logsigmoid,
        torch.nn.functional.mish,
        torch.nn.functional.selu,
        torch.nn.functional.hardswish,
        torch.special.erfc,
        torch.expm1,
        torch.log1p,
        torch.sinc,
        lambda x: torch.round(x, decimals=1),
        lambda x: torch.xlogy(x, x),
    ],
)
def test_operators_of_several_nodes_have_16_bits(tmp_path, dtype, function):
    x = (torch.arange(33) / 32).to(dtype)  # ten times these are exact, too
    onnxruntime_npu.export(Call(function), (x,), tmp_path / "model.onnx")
    types, (got,) = run_on_npu(tmp_path / "model.onnx", x)
    assert types == [TYPES[dtype]]
    # The nodes round one by one, torch rounds once; |results| are at most 2.
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(got, function(x).float().numpy(), rtol=0, atol=2 * eps)


@HALVES
def test_numbers_in_where_have_the_dtype_of_the_tensor(tmp_path, dtype):
    def choose(x):
        low, zero = torch.finfo(dtype).min, torch.full((), 0.0, dtype=dtype)
        chosen = [(zero, low), (low, zero), (x, low), (low, x), (1.0, low)]
        return [torch.where(x > 0, *pair) for pair in chosen]

    x = torch.randn(4, 32).to(dtype)
    onnxruntime_npu.export(Call(choose), (x,), tmp_path / "model.onnx")
    types, got = run_on_npu(tmp_path / "model.onnx", x)
    wanted = choose(x)
    assert types == [TYPES[tensor.dtype] for tensor in wanted]
    for actual, expected in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(actual, expected.float().numpy())


def test_branches_of_bfloat16_are_computed_in_float32_where_need_be(tmp_path):
    def choose(x):
        return torch.cond(
            x.sum() > 0,
            lambda x: torch.topk(x, 3).values + x.round()[:, :3] + torch.round(x[:, :3]),
            lambda x: x.round()[:, :3] * torch.topk(x, 4).values[:, 1:],
            (x.round() + torch.topk(x, x.shape[1]).values,),
        )

    x = (torch.randn(4, 8) * 5).bfloat16()
    onnxruntime_npu.export(Call(choose), (x,), tmp_path / "model.onnx")
    for given in (x, -x):
        types, (got,) = run_on_npu(tmp_path / "model.onnx", given)
        assert types == ["tensor(bfloat16)"]
        np.testing.assert_array_equal(got, choose(given).float().numpy())


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    scale: float = 2.0


def test_dataclasses_in_containers_are_taken_apart(tmp_path):
    def function(given, more):
        pair = given["pair"]
        return Pair(pair.left * pair.scale, [pair.right + more[0]])

    x, y, z = torch.randn(3, 2, 3)
    module, args = Call(function), ({"pair": Pair(x, y)}, (z,))
    onnxruntime_npu.export(module, args, tmp_path / "m.onnx")
    for left, right, scale in results(tmp_path / "m.onnx", x, y, z):
        assert scale == 2.0  # a number that is returned
        np.testing.assert_allclose(left, 2 * x, rtol=1e-6)
        np.testing.assert_allclose(right, y + z, rtol=1e-6)
    assert Pair not in SUPPORTED_NODES  # outside of the call
    torch.export.register_dataclass(Pair)
    onnxruntime_npu.export(module, args, tmp_path / "again.onnx")
    assert Pair in SUPPORTED_NODES


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x, cache, out):
        self.count.add_(x.sum(0))
        cache.view(-1).add_(1)
        return out.mul_(2), self.count * x


def test_writes_that_are_not_returned_are_warnings(tmp_path):
    x, cache, out = torch.randn(2, 3), torch.randn(2, 2), torch.randn(4)
    report = onnxruntime_npu.export(Counter(), (x, cache, out), tmp_path / "m.onnx")
    lost = [f"{kind} {name!r}" for kind, name in (("buffer", "count"), ("argument", "cache"))]
    assert [warning.split(" to its ")[1].split(",")[0] for warning in report.warnings] == lost
    for doubled, scaled in results(tmp_path / "m.onnx", x, cache, out):
        np.testing.assert_allclose(doubled, 2 * out, rtol=1e-6)
        np.testing.assert_allclose(scaled, x.sum(0) * x, rtol=1e-5)


def test_inputs_that_are_returned_keep_their_names(tmp_path):
    class Through(torch.nn.Module):
        def forward(self, x, y):
            return x, x + y, y.view(3, 2)

    x, y = torch.randn(2, 2, 3)
    report = onnxruntime_npu.export(Through(), (x, y), tmp_path / "m.onnx")
    assert [value["name"] for value in report.inputs] == ["x", "y"]
    assert len({value["name"] for value in report.outputs} - {"x", "y"}) == 3
    for same, added, viewed in results(tmp_path / "m.onnx", x, y):
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(added, x + y)
        np.testing.assert_array_equal(viewed, y.view(3, 2))


def test_control_flow_with_fused_operators(tmp_path):
    gamma = torch.rand(8)

    def normed(x):
        return torch.ops.npu.npu_rms_norm(x, gamma.to(x.device))[0]

    def function(x):
        x = torch.cond(x.sum() > 0, lambda x: normed(x), lambda x: x.cos(), (x,))
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]

    x = torch.rand(2, 8)
    report = onnxruntime_npu.export(Call(function), (x,), tmp_path / "m.onnx")
    assert report.without_body == [] and report.nodes["npu::NPURmsNorm"] == 1
    for given in (x, -x):
        expected = function(given)
        for (actual,) in results(tmp_path / "m.onnx", given):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_complex_tensors_are_pairs_of_floats(tmp_path):
    z = torch.randn(2, 3, dtype=torch.complex64)
    onnxruntime_npu.export(Call(lambda z: z * z), (z,), tmp_path / "m.onnx")
    for (actual,) in results(tmp_path / "m.onnx", torch.view_as_real(z)):
        np.testing.assert_allclose(actual, torch.view_as_real(z * z), rtol=1e-5, atol=1e-6)


def test_reasons_are_one_line(tmp_path):
    x = torch.ones(2, 3)
    shapes = ({0: torch.export.Dim("rows", min=5)},)
    for module, options, reason in (
        (Call(lambda x: None), {}, "it returns no tensors"),
        (Call(lambda x: x[: int(x.sum())] if x.sum() > 3 else x), {}, "torch.export cannot trace"),
        (Call(lambda x: x), {"dynamic_shapes": (shapes,)}, "torch.export cannot trace"),
    ):
        with pytest.raises(ExportError, match=reason) as error:
            onnxruntime_npu.export(module, (x,), tmp_path / "m.onnx", **options)
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


class Sorted(torch.nn.Module):
    """Every spelling of an order in which equal elements stay as they are."""

    def forward(self, x):
        values, places = torch.sort(x, dim=0, stable=True)
        down = torch.sort(x, dim=-2, stable=True, descending=True)
        only = torch.ops.npu.npu_sort_v2(x, 1, True)
        scalar = torch.sort(x.sum(), stable=True).values
        return values, places, *down, x.argsort(stable=True), only, scalar


@pytest.mark.parametrize("provider", PROVIDERS)
def test_stable_sort(tmp_path, provider):
    path, x = tmp_path / "sorted.onnx", torch.randint(-2, 3, (9, 40)).float()
    shapes = {"x": {0: torch.export.Dim("rows"), 1: torch.export.Dim("columns")}}
    onnxruntime_npu.export(Sorted(), (x,), path, dynamic_shapes=shapes)
    session = ort.InferenceSession(path, providers=[provider])
    for given in (x, torch.randint(-2, 3, (300, 2)).float(), torch.zeros(2, 65)):
        wanted = Sorted()(given)
        got = session.run(None, {"x": given.numpy()})
        for value, want in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(value, want.numpy())


class Training(torch.nn.Module):
    """Statistics of the batch, and those that the module keeps before and after."""

    def __init__(self, kind, affine):
        super().__init__()
        self.norm = kind(3, affine=affine, momentum=0.3)

    def forward(self, x):
        before = self.norm.running_mean * 2
        y = self.norm(x)
        return y, before, self.norm.running_mean + 0, self.norm.running_var + 0


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("kind", "shape"), [(torch.nn.BatchNorm1d, (8, 3)), (torch.nn.BatchNorm2d, (4, 3, 5, 2))]
)
def test_batch_norm_in_training_uses_the_batch(tmp_path, kind, shape, affine):
    module = Training(kind, affine)
    module(torch.randn(shape) * 3 + 1)
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}}
    example = torch.randn(shape)
    onnxruntime_npu.export(module, (example,), tmp_path / "m.onnx", dynamic_shapes=shapes)
    for given in (example, torch.randn(5, *shape[1:]) - 2):
        with torch.no_grad():
            wanted = copy.deepcopy(module)(given)
        for got in results(tmp_path / "m.onnx", given):
            for actual, expected in zip(got, wanted, strict=True):
                np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_copies_into_places_of_more_elements(tmp_path):
    def function(x, row, number):
        y, z = x.clone(), torch.empty_like(x, dtype=torch.int64)
        y[:, 1:3] = row[:, :1]
        y[0].copy_(number)
        z.copy_(row)
        return y, z

    x, row, number = torch.randn(3, 4), torch.randn(1, 4) * 5, torch.tensor(2)
    shapes = (({0: torch.export.Dim("rows")}, None, None),)
    onnxruntime_npu.export(
        Call(function), (x, row, number), tmp_path / "m.onnx", dynamic_shapes=shapes
    )
    for given in (x, torch.randn(5, 4)):
        wanted = function(given, row, number)
        for got in results(tmp_path / "m.onnx", given, row, number):
            for actual, expected in zip(got, wanted, strict=True):
                assert actual.dtype == expected.numpy().dtype
                np.testing.assert_array_equal(actual, expected)


def test_branches_in_loops(tmp_path):
    def fused(x):
        return x + torch.ops.npu.npu_fast_gelu(x)

    def body(i, x):
        return i + 1, torch.cond(i > 1, lambda x: x * 2, fused, (x,))

    def function(x):
        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))

    x = torch.randn(2, 3)
    report = onnxruntime_npu.export(Call(function), (x,), tmp_path / "m.onnx")
    assert report.nodes["npu::NPUFastGelu"] == 1
    wanted = function(x)
    for got in results(tmp_path / "m.onnx", x):
        for actual, expected in zip(got, wanted, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_what_torch_cannot_decompose_is_an_error_of_one_line(tmp_path):
    def twice(x):
        return while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * 3), (torch.tensor(0), x))[1]

    def nested(x):
        return while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, twice(x)), (torch.tensor(0), x))

    for function in (nested, lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: -x, (x,))):
        with pytest.raises(ExportError) as error:
            onnxruntime_npu.export(Call(function), (torch.ones(2),), tmp_path / "m.onnx")
        assert "\n" not in str(error.value) and "While executing" not in str(error.value)
    assert not list(tmp_path.iterdir())
