"""docs/patches.md lists what importing the package changes, for the versions it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as C

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "patches.md").read_text()

# Every attribute of the loaded modules and of their classes, before and after the import.
PROGRAM = """
import json, sys, warnings
import onnxruntime, torch, torch.amp, torch.utils.dlpack

warnings.simplefilter("ignore")

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] not in ("onnxruntime", "torch") or module is None:
            continue
        for key, value in list(vars(module).items()):
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__ == name:
                found |= {f"{name}.{key}.{k}": v for k, v in vars(value).items()}
    return found

before, owners = attributes(), set()
for name in before:
    owners.add(name.rpartition(".")[0])
import onnxruntime_npu
after = attributes()
print(json.dumps({
    "Replaced": [n for n, v in before.items() if n in after and after[n] is not v],
    "Added": [n for n in after if n not in before and n.rpartition(".")[0] in owners],
}))
"""
# The modules that define the public names.
HOMES = {
    "onnxruntime.capi.onnxruntime_inference_collection.": "onnxruntime.",
    "torch.nn.modules.module.": "torch.nn.",
}


def listed(title: str) -> list[str]:
    section = PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def public(name: str) -> str:
    for home, shown in HOMES.items():
        name = name.replace(home, shown)
    return name


def test_page_lists_every_patched_name(run_python):
    pytest.importorskip("torch")
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    code, printed = run_python(PROGRAM)
    assert code == 0, printed
    changed = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    for title, names in changed.items():
        assert sorted(map(public, names)) == sorted(listed(title)), title


def test_page_names_the_installed_versions():
    torch = pytest.importorskip("torch")
    found = re.search(r"as of onnxruntime (\S+) and torch (\S+)\.\n", PAGE)
    assert found
    assert ort.__version__.startswith(found[1]) and torch.__version__.startswith(found[2])


def raw_session(node: onnx.NodeProto, provider: str, options: dict[str, str]) -> None:
    """Make a session by onnxruntime's own class, without this package's patches."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in "xy")
    domains = {"": 17, "npu": 1, "ai.onnx.ml": 3}
    opsets = [helper.make_opsetid(*domain) for domain in domains.items()]
    graph = helper.make_graph([node], "graph", [x], [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    settings = C.get_default_session_options()
    session = C.InferenceSession(settings, model.SerializeToString(), False, False)
    session.initialize_session([provider], [options], set())


@pytest.mark.parametrize(
    ("words", "op_type", "domain", "provider", "options"),
    [
        ("is not a registered function/op", "NPUUnheardOf", "npu", "NPUExecutionProvider", {}),
        (
            "cannot use the graph capture feature",
            "Normalizer",
            "ai.onnx.ml",
            "NPUExecutionProvider",
            {"enable_npu_graph": "1"},
        ),
        ("Unknown Provider Type: ", "Normalizer", "ai.onnx.ml", "UnheardOfExecutionProvider", {}),
    ],
)
def test_onnxruntime_messages_match_the_page(words, op_type, domain, provider, options):
    node = helper.make_node(op_type, ["x"], ["y"], domain=domain)
    with pytest.raises(Exception, match=re.escape(words)):
        raw_session(node, provider, options)
    assert any(words.strip() in said for said in listed("Messages that are read"))
