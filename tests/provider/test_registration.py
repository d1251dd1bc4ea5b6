"""Importing the package registers the provider; every way of selecting it works."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnxruntime_npu.session import provider_library
from provider_models import CPU, NPU, add_model, npu_session, providers_of, run_python

X = np.arange(8, dtype=np.float32).reshape(2, 4)
EXPECTED = (X + X) * X


def npu_devices() -> list:
    return [d for d in ort.get_ep_devices() if d.ep_name == NPU]


def check(session: ort.InferenceSession) -> None:
    assert providers_of(session) == {"add": NPU, "mul": NPU}
    np.testing.assert_array_equal(session.run(None, {"x": X, "y": X})[0], EXPECTED)


def test_import_registers_once_without_torch():
    result = run_python(
        """
        import sys, onnxruntime as ort, onnxruntime_npu
        onnxruntime_npu.register(); onnxruntime_npu.register()
        assert ort.get_available_providers().count("NPUExecutionProvider") == 1
        assert len([d for d in ort.get_ep_devices() if d.ep_name == "NPUExecutionProvider"]) == 1
        assert "torch" not in sys.modules
        """
    )
    assert result.returncode == 0, result.stderr


def test_names_and_path():
    assert onnxruntime_npu.get_ep_names() == [onnxruntime_npu.get_ep_name()] == [NPU]
    library = ctypes.CDLL(onnxruntime_npu.get_library_path())
    assert library.CreateEpFactories and library.ReleaseEpFactory and library.RegisterCustomOps


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = onnxruntime_npu.no_such_name


def test_library_can_be_registered_again_in_one_process():
    result = run_python(
        """
        import numpy as np, onnxruntime as ort, onnxruntime_npu
        from provider_models import add_model, npu_session
        x = np.ones((1, 4), np.float32)
        for _ in range(2):
            ort.unregister_execution_provider_library("NPUExecutionProvider")
            assert "NPUExecutionProvider" not in ort.get_available_providers()
            ort.register_execution_provider_library(
                "NPUExecutionProvider", onnxruntime_npu.get_library_path())
            assert npu_session(add_model()).run(None, {"x": x, "y": x})[0].sum() == 8
        """
    )
    assert result.returncode == 0, result.stderr


def test_sessions_and_values_outlive_the_registration():
    result = run_python(
        """
        import gc, numpy as np, onnxruntime as ort, onnxruntime_npu
        from provider_models import add_model, npu_session
        x = np.ones((1, 4), np.float32)
        sessions = [npu_session(add_model()) for _ in range(2)]
        value = onnxruntime_npu.ortvalue_from_numpy(x)
        ort.unregister_execution_provider_library("NPUExecutionProvider")
        assert sessions[0].run(None, {"x": x, "y": x})[0].sum() == 8
        del sessions[0], value
        gc.collect()
        onnxruntime_npu.register()
        for session in (sessions[0], npu_session(add_model())):
            assert session.run(None, {"x": x, "y": x})[0].sum() == 8
        """
    )
    assert result.returncode == 0, result.stderr


def test_device_is_listed_as_an_npu():
    (device,) = npu_devices()
    assert device.device.type == ort.OrtHardwareDeviceType.NPU
    assert device.device.vendor_id == 0x19E5
    assert device.ep_metadata["npu_index"] == "0"
    assert device.ep_metadata["is_virtual"] == "1"


@pytest.mark.parametrize(
    "providers", [[NPU], [(NPU, {})], [(NPU, {"device_id": 0})], [NPU, CPU]], ids=str
)
def test_selection_by_name(providers):
    check(ort.InferenceSession(add_model(), providers=providers))


def test_selection_by_set_providers():
    session = ort.InferenceSession(add_model(), providers=[CPU])
    session.set_providers([NPU])
    check(session)


def test_selection_by_device():
    options = ort.SessionOptions()
    options.add_provider_for_devices(npu_devices(), {})
    check(ort.InferenceSession(add_model(), options))


def test_selection_by_policy():
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    check(ort.InferenceSession(add_model(), options))


def test_preferring_the_cpu_does_not_select_the_npu():
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    assert NPU not in ort.InferenceSession(add_model(), options).get_providers()


def test_selection_of_a_second_device():
    result = run_python(
        """
        import numpy as np, onnxruntime as ort, onnxruntime_npu
        from provider_models import add_model, npu_session
        x = np.ones((1, 4), np.float32)
        devices = [d for d in ort.get_ep_devices() if d.ep_name == "NPUExecutionProvider"]
        assert [d.ep_metadata["npu_index"] for d in devices] == ["0", "1"]
        by_device = ort.SessionOptions()
        by_device.add_provider_for_devices([devices[1]], {})
        for session in (
            npu_session(add_model(), device_id=1), ort.InferenceSession(add_model(), by_device)
        ):
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", onnxruntime_npu.ortvalue_from_numpy(x, device_id=1))
            binding.bind_ortvalue_input("y", onnxruntime_npu.ortvalue_from_numpy(x, device_id=0))
            binding.bind_output("z", "npu", 1)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(
                onnxruntime_npu.ortvalue_to_numpy(binding.get_outputs()[0]), 2 * x)
        """,
        {"ORT_NPU_DEVICE_COUNT": "2"},
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"no_such_option": "1"}, "unknown provider option 'no_such_option'; known options: dev"),
        ({"device_id": "first"}, "option 'device_id' expected the index .* got 'first'"),
        ({"device_id": "-1"}, "option 'device_id' expected .* got '-1'"),
        ({"device_id": 7}, "option 'device_id' expected 0 to 0, got 7"),
        ({"cpu_fallback": "maybe"}, "option 'cpu_fallback' expected allow, refuse; got 'maybe'"),
    ],
)
def test_bad_options_name_the_key_and_the_allowed_values(settings, message, capfd):
    with pytest.raises(Exception, match=message) as raised:
        npu_session(add_model(), **settings)
    assert "\n" not in str(raised.value)
    assert "Falling back" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("providers", "options"),
    [
        (NPU, None),
        ([(NPU,)], None),
        ([(NPU, "device_id=0")], None),
        ([[NPU, {}]], None),
        ([NPU], [{}, {}]),
        ([NPU], ["device_id"]),
        ([NPU], {"device_id": 0}),
        ([NPU, "NoSuchExecutionProvider"], None),
    ],
    ids=str,
)
def test_providers_in_another_form_are_one_clear_error(providers, options, capfd):
    with (
        pytest.warns(UserWarning) if "NoSuch" in str(providers) else contextlib.nullcontext(),
        pytest.raises(Exception, match=r"providers|NoSuchExecutionProvider") as raised,
    ):
        ort.InferenceSession(add_model(), providers=providers, provider_options=options)
    assert type(raised.value).__module__ == "onnxruntime.capi.onnxruntime_pybind11_state"
    assert "Falling back" not in capfd.readouterr().out


def test_documented_options_match_the_code(request):
    path = request.config.rootpath / "docs" / "provider_options.md"
    rows = [line for line in path.read_text().splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{o.name}` | {o.values} | `{o.default}` | {o.help} |"
        for o in provider_library.provider_options()
    ]


def test_absurd_environment_is_one_clear_error():
    result = run_python("import onnxruntime_npu", {"ORT_NPU_MEMORY_LIMIT": "lots"})
    assert result.returncode == 1
    assert "environment variable ORT_NPU_MEMORY_LIMIT: expected" in result.stderr.splitlines()[-1]
    assert result.stderr.count("Traceback") == 1


def test_missing_library_is_one_clear_error(tmp_path):
    package = Path(onnxruntime_npu.__file__).parent
    shutil.copytree(
        package, tmp_path / package.name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import onnxruntime_npu"
    result = run_python(code)
    assert result.returncode == 1
    assert "expected the provider library at" in result.stderr.strip().splitlines()[-1]


def test_missing_kernels_are_one_clear_error_and_no_fallback(tmp_path):
    package = Path(onnxruntime_npu.__file__).parent
    missing = shutil.ignore_patterns("libnpu_kernels_*", "_torch*.so", "__pycache__")
    shutil.copytree(package, tmp_path / package.name, ignore=missing)
    (tmp_path / "add.onnx").write_bytes(add_model())
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import onnxruntime, onnxruntime_npu
onnxruntime.InferenceSession({str(tmp_path / "add.onnx")!r}, providers=[{NPU!r}])
"""
    result = run_python(code, {"ORT_NPU_ISA": "portable"})
    assert result.returncode == 1 and result.stdout == ""
    last = result.stderr.strip().splitlines()[-1]
    assert "Fail: no kernel library for ORT_NPU_ISA=portable: expected" in last


def test_names_are_listed_without_torch():
    result = run_python(
        "import sys, onnxruntime_npu as o; print(*dir(o)); assert 'torch' not in sys.modules"
    )
    names = set(result.stdout.split())
    assert {"assignment", "export_causal_lm", "npu_rms_norm", "generation", "register"} <= names
    assert not {"Any", "annotations", "importlib", "define_operators_with_torch"} & names


def test_type_checkers_know_the_public_names():
    """Those of operators are in the generated stubs of ``ops``."""
    folder = Path(onnxruntime_npu.__file__).parent
    assert (folder / "py.typed").exists()
    known = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((folder / "__init__.pyi").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    operators = set(onnxruntime_npu.ops.torch_names())
    names = {name for name in dir(onnxruntime_npu) if not name.startswith("__")} - operators
    assert known == names | {"*", "__version__"}


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("export_causal_lm", "transformers", "export"),
        ("NPUModelForCausalLM", "torch", "export"),
        ("converters", "onnx", "export"),
        ("npu_rms_norm", "torch", "torch"),
    ],
)
def test_a_missing_package_is_named_with_the_extra_that_has_it(name, package, extra):
    code = f"import sys; sys.modules[{package!r}] = None; import onnxruntime_npu as o; o.{name}"
    result = run_python(code)
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1] == (
        f"ModuleNotFoundError: onnxruntime_npu.{name} needs the package {package}: "
        f"pip install 'onnxruntime-npu[{extra}]'"
    )


def test_a_child_forked_after_the_import_can_use_the_npu():
    result = run_python(
        """
        import os
        import numpy as np, onnxruntime_npu
        from provider_models import add_model, npu_session
        assert onnxruntime_npu.npu.get_device_properties(0).total_memory > 0
        x = np.ones((1 << 16, 4), np.float32)  # for all threads
        child, status = os.fork(), 1
        try:
            assert (npu_session(add_model()).run(None, {"x": x, "y": x})[0] == 2).all()
            status = 0
        finally:
            if not child:
                os._exit(status)  # as processes of multiprocessing end
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert result.returncode == 0, result.stderr
