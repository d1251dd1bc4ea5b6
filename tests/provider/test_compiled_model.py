"""Compiled models (ep.context_enable): packed constants are stored, and checked when loaded."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fusion_models import fused_nodes, model_of, node, without_optimizations
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data
from provider_models import NPU, npu_session

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(5)
WARNING = "is packed again"
FILE_OF_WEIGHTS = "ep.context_model_external_initializers_file_name"


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


FEEDS = {"x": normal(3, 64)}
INNER = 256
WEIGHTS = {"w": normal(64, INNER, scale=0.1), "v": normal(48, INNER, scale=0.1), "b": normal(48)}


def two_products() -> bytes:
    """y = gelu(x W) Vᵀ + b, with a Gelu in single operators between MatMul and Gemm."""
    constants = {
        **WEIGHTS,
        "root": np.float32(2**0.5),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    nodes = [
        node("MatMul", "x w", "h"),
        node("Div", "h root", "h_root"),
        node("Erf", "h_root", "erf"),
        node("Add", "erf one", "erf_one"),
        node("Mul", "h erf_one", "h_erf"),
        node("Mul", "h_erf half", "gelu"),
        node("Gemm", "gelu v b", "y", transB=1),
    ]
    return model_of(nodes, FEEDS, {k: np.asarray(v) for k, v in constants.items()})


def compile_options(path: Path, embed: bool = False) -> ort.SessionOptions:
    options = without_optimizations()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(path))
    options.add_session_config_entry("ep.context_embed_mode", str(int(embed)))
    return options


def compile_model(model: bytes | str, path: Path, embed: bool = False, **settings: Any) -> Path:
    npu_session(model, compile_options(path, embed), **settings)
    return path


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    return compile_model(two_products(), tmp_path / "m.onnx")


def packed_file(compiled: Path) -> Path:
    return compiled.with_name(compiled.stem + "_npu.bin")


def results(model: bytes | Path, feeds: dict[str, np.ndarray] = FEEDS, **settings: Any) -> list:
    given = str(model) if isinstance(model, Path) else model
    return npu_session(given, **settings).run(None, feeds)


def contexts(compiled: Path) -> dict[str, onnx.NodeProto]:
    """The EPContext nodes by their first output."""
    model = onnx.load(compiled)
    return {n.output[0]: n for n in model.graph.node if n.op_type == "EPContext"}


def edit(compiled: Path, change: Callable[[onnx.NodeProto], None]) -> Path:
    """Changes every EPContext node of the file."""
    model = onnx.load(compiled)
    for each in model.graph.node:
        if each.op_type == "EPContext":
            change(each)
    onnx.save(model, compiled)
    return compiled


def set_attribute(name: str, value: str | bytes) -> Callable[[onnx.NodeProto], None]:
    def change(each: onnx.NodeProto) -> None:
        next(a for a in each.attribute if a.name == name).CopyFrom(
            helper.make_attribute(name, value)
        )

    return change


def text_of(each: onnx.NodeProto, name: str) -> str:
    return next(a.s for a in each.attribute if a.name == name).decode()


@pytest.mark.parametrize("embed", [False, True])
def test_a_compiled_model_computes_the_same(tmp_path: Path, embed: bool, capfd):
    model = two_products()
    path = compile_model(model, tmp_path / "m.onnx", embed)
    assert packed_file(path).exists() != embed
    assert set(contexts(path)) == {"h", "gelu", "y"}
    session = npu_session(str(path))
    assert set(fused_nodes(session).values()) == {"MatMul", "Gelu", "Gemm"}
    for a, b in zip(session.run(None, FEEDS), results(model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert WARNING not in capfd.readouterr().err


def test_single_nodes_are_compiled_without_fusion(tmp_path: Path, capfd):
    model = two_products()
    path = compile_model(model, tmp_path / "m.onnx", fusion=0)
    assert set(contexts(path)) == {"h", "y"}
    np.testing.assert_array_equal(results(path)[0], results(model, fusion=0)[0])
    assert WARNING not in capfd.readouterr().err


def test_the_compiling_session_runs_too(tmp_path: Path):
    model = two_products()
    session = npu_session(model, compile_options(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], results(model)[0])


def test_packed_constants_stay_in_the_file(tmp_path: Path):
    """A session on it allocates no device memory for them."""
    weight = normal(1024, 1024)
    feeds = {"x": normal(2, 1024)}
    model = model_of([node("MatMul", "x w", "y")], feeds, {"w": weight})
    path = compile_model(model, tmp_path / "m.onnx")

    def allocated_by(given: bytes | str) -> int:
        before = torch.npu.memory_allocated()
        session = npu_session(given)
        after = torch.npu.memory_allocated()
        del session
        return after - before

    assert allocated_by(model) >= weight.nbytes
    assert allocated_by(str(path)) < weight.nbytes // 16
    np.testing.assert_array_equal(results(path, feeds)[0], results(model, feeds)[0])


def test_convolutions_integers_and_recurrences(tmp_path: Path, capfd):
    """Kernels with several packed constants, or with more than packed constants."""
    feeds = {"x": normal(1, 16, 9, 9)}
    constants = {
        "w": normal(32, 16, 3, 3, scale=0.1),
        "q": RNG.integers(-100, 100, (9, 24)).astype(np.int8),
        "zero": np.uint8(3),
        "scale": np.float32(0.05),
        "r": normal(1, 4 * 8, 24, scale=0.1),
        "rr": normal(1, 4 * 8, 8, scale=0.1),
        "rows": np.array([32 * 9, 1, 24]),
    }
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c scale zero", "a"),
        node("MatMulInteger", "a q zero", "i"),
        node("Cast", "i", "f", to=TensorProto.FLOAT),
        node("Reshape", "f rows", "t"),
        node("LSTM", "t r rr", "y", hidden_size=8),
    ]
    model = model_of(nodes, feeds, {k: np.asarray(v) for k, v in constants.items()})
    path = compile_model(model, tmp_path / "m.onnx")
    assert {text_of(n, "notes").split(" ")[2] for n in contexts(path).values()} >= {
        "13:MatMulInteger",
        "4:LSTM",
    }
    np.testing.assert_array_equal(results(path, feeds)[0], results(model, feeds)[0])
    assert WARNING not in capfd.readouterr().err


def test_quantised_products_with_a_gate_or_a_norm(tmp_path: Path, capfd):
    """Integers are packed in the file, scales when it is opened."""
    feeds = {"x": normal(5, 64).astype(np.float16)}
    product = {"antiquant_group_size": 32, "inner_precise": 1}
    constants = {
        "w": RNG.integers(-(2**31), 2**31, (64, 16)).astype(np.int32),
        "v": RNG.integers(-128, 128, (64, 64)).astype(np.int8),
        "w_scale": np.full((2, 128), 0.02, np.float16),
        "w_offset": RNG.integers(-8, 8, (2, 128)).astype(np.float16),
        "v_scale": np.full((2, 64), 0.001, np.float16),
        "gamma": normal(64).astype(np.float16),
    }
    nodes = [
        node("NPUWeightQuantBatchMatmulV2", "x w w_scale w_offset", "halves", **product),
        node("NPUSwiGlu", "halves", "gated", dim=-1),
        node("NPUWeightQuantBatchMatmulV2", "gated v v_scale", "h", **product),
        node("NPUAddRmsNorm", "x h gamma", "y", epsilon=1e-5),
    ]
    for each in nodes:
        each.domain = "npu"
    model = model_of(nodes, feeds, constants)
    path = compile_model(model, tmp_path / "m.onnx")
    names = {text_of(each, "notes").split(" ")[2] for each in contexts(path).values()}
    assert names == {"22:WeightQuantGatedMatMul", "27:WeightQuantMatMulAddRmsNorm"}
    np.testing.assert_array_equal(results(path, feeds)[0], results(model, feeds)[0])
    assert WARNING not in capfd.readouterr().err


def test_nodes_of_subgraphs_are_left_as_they_are(tmp_path: Path):
    """Onnxruntime stores EPContext nodes in the model's own graph only."""

    def branch(name: str, function: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        nodes = [node(function, "h", f"{name}_s"), node("Mul", f"h {name}_s", name)]
        return helper.make_graph(nodes, name, [], [result])

    nodes = [
        node("MatMul", "x w", "h"),
        node("If", "flag", "y", then_branch=branch("a", "Sigmoid"), else_branch=branch("b", "Neg")),
    ]
    feeds = {**FEEDS, "flag": np.array(True)}
    model = model_of(nodes, feeds, {"w": WEIGHTS["w"]})
    assert set(fused_nodes(npu_session(model, without_optimizations())).values()) == {"Swish"}
    path = compile_model(model, tmp_path / "m.onnx")
    assert set(contexts(path)) == {"h"}
    for flag in (True, False):
        feeds["flag"] = np.array(flag)
        np.testing.assert_array_equal(results(path, feeds)[0], results(model, feeds)[0])


def test_a_model_from_memory_finds_its_file_by_the_option(compiled: Path, capfd):
    options = ort.SessionOptions()
    options.add_session_config_entry("ep.context_file_path", str(compiled))
    session = npu_session(compiled.read_bytes(), options)
    np.testing.assert_array_equal(session.run(None, FEEDS)[0], results(compiled)[0])
    assert WARNING not in capfd.readouterr().err


def npu_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    devices = [d for d in ort.get_ep_devices() if d.ep_name == NPU]
    options.add_provider_for_devices(devices[:1], {})
    return options


def test_the_compile_api(tmp_path: Path, capfd):
    source = tmp_path / "source.onnx"
    source.write_bytes(two_products())
    path = tmp_path / "out.onnx"
    ort.ModelCompiler(npu_options(), str(source)).compile_to_file(str(path))
    np.testing.assert_array_equal(results(path)[0], results(source)[0])
    assert packed_file(path).exists()
    assert WARNING not in capfd.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_small_constants_stay_in_the_model_beside_a_file_of_weights(
    named: bool, tmp_path: Path, capfd
):
    """Inferring shapes needs them: onnxruntime does not load a model with axes in another file."""
    constants = {"w": WEIGHTS["w"], "axes": np.array([0]), "rows": np.array([3, 1, INNER])}
    nodes = [
        node("MatMul", "x w", "h"),
        node("Unsqueeze", "h axes", "u"),
        node("Reshape", "u rows", "y"),
    ]
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of(nodes, FEEDS, constants))
    path = tmp_path / ("compiled.onnx" if named else "m_ctx.onnx")  # onnxruntime's default
    options = without_optimizations()
    options.add_session_config_entry("ep.context_enable", "1")
    if named:
        options.add_session_config_entry("ep.context_file_path", str(path))
    options.add_session_config_entry(FILE_OF_WEIGHTS, "weights.bin")
    npu_session(str(source), options)
    model = onnx.load(path, load_external_data=False)
    assert {c.name for c in model.graph.initializer if uses_external_data(c)} == {"w"}
    assert (tmp_path / "weights.bin").stat().st_size >= constants["w"].nbytes
    expected = results(source)[0]
    np.testing.assert_array_equal(results(path)[0], expected)
    assert WARNING not in capfd.readouterr().err
    packed_file(path).unlink()
    np.testing.assert_array_equal(results(path)[0], expected)
    assert WARNING in capfd.readouterr().err
    assert len(list(tmp_path.iterdir())) == 3  # nothing unfinished beside the model and its files


def test_without_onnx_a_file_of_weights_has_all_constants(tmp_path: Path, monkeypatch):
    """The package works without onnx: the model is what onnxruntime has written, with a warning."""
    source = tmp_path / "m.onnx"
    source.write_bytes(model_of([node("MatMul", "x w", "y")], FEEDS, {"w": WEIGHTS["w"]}))
    options = without_optimizations()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry(FILE_OF_WEIGHTS, "weights.bin")
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="pip install onnx"):
        patch.setitem(sys.modules, "onnx", None)
        npu_session(str(source), options)
    np.testing.assert_array_equal(results(tmp_path / "m_ctx.onnx")[0], results(source)[0])


def flip_a_byte(compiled: Path) -> None:
    content = bytearray(packed_file(compiled).read_bytes())
    content[len(content) // 3] ^= 1
    packed_file(compiled).write_bytes(content)


def truncate(compiled: Path) -> None:
    content = packed_file(compiled).read_bytes()
    packed_file(compiled).write_bytes(content[: len(content) // 2])


def replace_by_a_pipe(compiled: Path) -> None:
    packed_file(compiled).unlink()
    os.mkfifo(packed_file(compiled))


def replace_by_a_directory(compiled: Path) -> None:
    packed_file(compiled).unlink()
    packed_file(compiled).mkdir()


DAMAGE = {
    "flipped": (flip_a_byte, "checksum"),
    "truncated": (truncate, "bytes in all"),
    "empty": (lambda c: packed_file(c).write_bytes(b""), "got 0 bytes in all"),
    "missing": (lambda c: packed_file(c).unlink(), "No such file"),
    "pipe": (replace_by_a_pipe, "not a regular file"),
    "directory": (replace_by_a_directory, "not a regular file"),
    "outside": (lambda c: edit(c, set_attribute("ep_cache_context", "../m_npu.bin")), "beside the"),
    "version": (lambda c: edit(c, set_attribute("ep_sdk_version", "another 1")), "made by another"),
    "machine": (lambda c: edit(c, set_attribute("hardware_architecture", "host z")), "made by"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_does_not_fit_is_packed_again(name: str, compiled: Path, capfd):
    expected = results(two_products())[0]
    damage, reason = DAMAGE[name]
    damage(compiled)
    np.testing.assert_array_equal(results(compiled)[0], expected)
    error = capfd.readouterr().err
    assert WARNING in error
    assert reason in error


def test_damage_inside_the_model_is_found(tmp_path: Path, capfd):
    path = compile_model(two_products(), tmp_path / "m.onnx", embed=True)

    def cut(each: onnx.NodeProto) -> None:
        context = next(a for a in each.attribute if a.name == "ep_cache_context")
        context.s = context.s[: len(context.s) // 2]

    edit(path, cut)
    np.testing.assert_array_equal(results(path)[0], results(two_products())[0])
    assert "bytes in all" in capfd.readouterr().err


def test_another_precision_packs_again(compiled: Path, capfd):
    medium = {"float32_matmul_precision": "medium"}
    expected = results(two_products(), **medium)[0]
    np.testing.assert_array_equal(results(compiled, **medium)[0], expected)
    assert "float32_matmul_precision" in capfd.readouterr().err


def test_an_existing_file_is_kept(compiled: Path):
    before = packed_file(compiled).read_bytes()
    with pytest.raises(Exception, match="exist"):
        compile_model(two_products(), compiled)
    assert packed_file(compiled).read_bytes() == before
    assert sorted(p.name for p in compiled.parent.iterdir()) == ["m.onnx", "m_npu.bin"]


def test_errors_name_what_was_expected(compiled: Path, tmp_path: Path):
    with pytest.raises(Exception, match="a compiled model keeps values in NPU memory"):
        npu_session(str(compiled), host_memory=1)
    with pytest.raises(Exception, match="a path that can be written"):
        compile_model(two_products(), tmp_path / "no" / "such" / "m.onnx")
    compiler = ort.ModelCompiler(npu_options(), two_products())
    with pytest.raises(
        Exception, match=r"expected ep\.context_file_path for a model that has no file"
    ):
        compiler.compile_to_bytes()


def test_operators_are_held_to_their_types(tmp_path: Path):
    """Onnxruntime knows no operator in an EPContext: a kernel would read beyond its input."""
    feeds = {"x": normal(4, 64), "z": normal(4, 64).astype(np.float16)}
    weight = {"w": normal(64, 64)}
    nodes = [node("MatMul", "x w", "h"), node("Cast", "z", "y", to=TensorProto.FLOAT)]
    path = compile_model(model_of(nodes, feeds, weight, ("h", "y")), tmp_path / "m.onnx")
    model = onnx.load(path)
    context = next(n for n in model.graph.node if n.op_type == "EPContext")
    context.input[0] = "z"
    onnx.save(model, path)
    with pytest.raises(Exception, match="of the type of 'z', float16, got float32"):
        npu_session(str(path))


def mutated(text: str, random_: random.Random) -> str:
    """A word or a character of `text` replaced, removed or doubled."""
    words = text.split(" ")
    at = random_.randrange(len(words))
    word = words[at]
    others = ["-1", "0", "7", "99999999999", "18446744073709551615", "nan", "1e999", "", "x:", "5:"]
    choice = random_.randrange(5)
    if choice == 0:
        words[at] = random_.choice(others)
    elif choice == 1:
        del words[at]
    elif choice == 2:
        words.insert(at, word)
    elif choice == 3:
        words[at] = random_.choice(words)
    else:
        words[at] = word[: random_.randrange(len(word) + 1)]
    return " ".join(words)


def test_hostile_descriptions(tmp_path: Path):
    """Each gives an error or a session whose runs give results or errors."""
    path = compile_model(two_products(), tmp_path / "m.onnx")
    original = {name: text_of(n, "notes") for name, n in contexts(path).items()}
    random_ = random.Random(11)
    quiet = ort.SessionOptions()
    quiet.log_severity_level = 4
    refused = ran = 0
    for _ in range(50):
        name = random_.choice(sorted(original))
        notes = mutated(original[name], random_)

        def change(each: onnx.NodeProto, name: str = name, notes: str = notes) -> None:
            own = notes if each.output[0] == name else original[each.output[0]]
            set_attribute("notes", own)(each)

        edit(path, change)
        try:
            npu_session(str(path), quiet).run(None, FEEDS)
            ran += 1
        except Exception as error:  # onnxruntime's exceptions have no common base
            assert str(error)
            refused += 1
    assert refused > 20
    assert ran > 0
