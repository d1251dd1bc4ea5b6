"""Function bodies for files whose ``npu::`` nodes have none, such as those of torch_npu."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnxruntime_npu.opdef.attach import attach_function_bodies


def attach_bodies(model: onnx.ModelProto | ir.Model) -> list[str]:
    """Give every ``npu::`` node of a model its portable function body, in place.

    With it the model also loads in sessions by provider name and runs on any provider. Names of
    torch_npu's exporter are understood, such as ``NPURmsNorm`` of three inputs for
    ``npu_add_rms_norm``. Existing functions stay.

    Args:
        model: a loaded model of opset 18 or later.

    Returns:
        The op types, sorted, that have no portable body: such a model needs the NPU.

    Raises:
        DefinitionError: a node is of an unknown type, or an input's element type is not known.

    """
    return attach_function_bodies(model)
