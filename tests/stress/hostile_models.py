"""One-node models of the onnx package that break their operators' rules; see hostile.py."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from hostile import (
    REALS,
    WITHOUT_NPU,
    WORDS,
    other_list,
    other_number,
    other_shape,
    other_values,
)
from onnx import AttributeProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from onnx_backend import OTHER_VALUES, as_array, loadable, node_cases, ort_value
from onnx_nodes import CPU, NPU

Feeds = dict[str, np.ndarray]
ort.set_default_logger_severity(4)


@cache
def cases() -> list:
    """The package's node tests of tensors, without subgraphs."""
    return [
        case
        for case in node_cases()
        if len(case.model.graph.node) == 1
        and case.model.graph.node[0].domain == ""
        and not OTHER_VALUES.search(case.model.graph.node[0].op_type)
        and all(value.type.HasField("tensor_type") for value in case.model.graph.input)
        and not any(a.type == AttributeProto.GRAPH for a in case.model.graph.node[0].attribute)
    ]


def make_call(rng: np.random.Generator) -> str:
    """Runs a changed model; says whether it had a result or what refused it."""
    case = cases()[rng.integers(len(cases()))]
    model = loadable(case.model)
    inputs = case.data_sets[0][0]
    feeds = dict(zip((x.name for x in model.graph.input), map(as_array, inputs), strict=False))
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
    for _ in range(int(rng.integers(1, 4))):
        changes = [change_attribute, change_shape, change_values, change_values, change_presence]
        changes[rng.integers(len(changes))](rng, model, feeds)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if WITHOUT_NPU.items() <= os.environ.items():
        provider = CPU
    else:
        provider = NPU
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    # Onnxruntime computes no constants by its own kernels, which is not what is tested.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=[provider])
        if provider == CPU:
            return f"{case.name}: loaded"
        session.run_with_ort_values(None, {name: ort_value(x) for name, x in feeds.items()})
    except Exception as error:
        return f"{case.name}: {error}"
    return f"{case.name}: a result"


def change_attribute(rng: np.random.Generator, model: onnx.ModelProto, feeds: Feeds) -> None:
    """Another value of an attribute, or none."""
    node = model.graph.node[0]
    if not node.attribute:
        return
    at = int(rng.integers(len(node.attribute)))
    old = node.attribute[at]
    value = helper.get_attribute_value(old)
    del node.attribute[at]
    if rng.random() < 0.1:
        return
    if old.type == AttributeProto.INT:
        new = other_number(rng, value)
    elif old.type == AttributeProto.INTS:
        new = other_list(rng, list(value))
    elif old.type == AttributeProto.FLOAT:
        new = REALS[rng.integers(len(REALS))]
    elif old.type == AttributeProto.STRING:
        new = WORDS[rng.integers(len(WORDS))]
    else:
        return
    node.attribute.append(helper.make_attribute(old.name, new, attr_type=old.type))


def picked(rng: np.random.Generator, feeds: Feeds) -> str:
    return list(feeds)[rng.integers(len(feeds))] if feeds else ""


def change_shape(rng: np.random.Generator, model: onnx.ModelProto, feeds: Feeds) -> None:
    name = picked(rng, feeds)
    if name:
        shape = other_shape(rng, feeds[name].shape)
        feeds[name] = np.resize(feeds[name], shape)


def change_values(rng: np.random.Generator, model: onnx.ModelProto, feeds: Feeds) -> None:
    name = picked(rng, feeds)
    if name and feeds[name].dtype.kind in "iuf":
        feeds[name] = other_values(rng, feeds[name])


def change_presence(rng: np.random.Generator, model: onnx.ModelProto, feeds: Feeds) -> None:
    """An input less, or one that is a constant."""
    name = picked(rng, feeds)
    if not name:
        return
    graph, node = model.graph, model.graph.node[0]
    if rng.random() < 0.7:
        graph.initializer.append(numpy_helper.from_array(np.asarray(feeds[name]), name))
    else:
        names = ["" if given == name else given for given in node.input]
        del node.input[:]
        node.input.extend(names)
    del feeds[name]
    kept = [x for x in graph.input if x.name != name]
    del graph.input[:]
    graph.input.extend(kept)
