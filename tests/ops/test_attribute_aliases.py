"""Other names and values of attributes, which files of other exporters have, mean the same.

Derived from the definitions: each sample's node with each other name, and with words for integers.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir
import pytest
from onnxruntime_npu.opdef import Op, all_ops, attach_function_bodies
from onnxruntime_npu.opdef.node_parts import Attribute
from op_paths import CPU, NPU, check_close, make_model, reference, run_model, samples


def _calls() -> Iterator[object]:
    for op in all_ops().values():
        for attribute in op.attributes:
            for name in (*attribute.aliases, *([attribute.name] if attribute.words else [])):
                yield pytest.param(op, attribute, name, id=f"{op.name}-{name}")


def _renamed(attribute: Attribute, given: onnx.AttributeProto, name: str) -> onnx.AttributeProto:
    if attribute.words:
        return onnx.helper.make_attribute(name, attribute.words[given.i])
    renamed = onnx.AttributeProto()
    renamed.CopyFrom(given)
    renamed.name = name
    return renamed


@pytest.mark.parametrize(("op", "attribute", "name"), list(_calls()))
def test_means_the_same(op: Op, attribute: Attribute, name: str) -> None:
    renamed = 0
    for sample in samples(op, op.sample_dtypes[0]):
        model = make_model(op, sample, body=False)
        node = model.graph.node[0]
        own = [a for a in node.attribute if a.name == attribute.name]
        if not own:
            continue
        node.attribute.remove(own[0])
        node.attribute.append(_renamed(attribute, own[0], name))
        renamed += 1
        want = reference(op, sample)
        check_close(op, op.sample_dtypes[0], run_model(model, NPU, op, sample), want)
        graph = ir.from_proto(model)
        attach_function_bodies(graph)
        attach_function_bodies(model)
        for attached in (model, ir.to_proto(graph)):
            assert attribute.name in [a.name for a in attached.graph.node[0].attribute]
            for provider in [NPU, CPU] if attached.functions else [NPU]:
                got = run_model(attached, provider, op, sample)
                check_close(op, op.sample_dtypes[0], got, want, reduces_empty=provider == NPU)
    assert renamed
