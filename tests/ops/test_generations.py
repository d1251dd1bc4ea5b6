"""Operators that follow another generation of devices with ORT_NPU_GENERATION, on every path.

The variable is read once, so that each of its values has a process of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

NAN = float("nan")
# npu_iou: sides longer by 0.01, of areas and, on the newest generation, of intersections; the
# first truth has no height, and the second is the second box. 0.1001 / 100.2001 = 0.000999.
BOXES = [[0, 0, 10, 10], [10, 10, 20, 20]]
TRUTHS = [[0, 10, 10, 10], [10, 10, 20, 20]]
OVERLAPS = {
    "older": [[0, 0], [0, 0.996014]],
    "newest": [[0.000999, 0.0001 / 100.3001], [0.0001 / (2 * 100.2001 - 0.0001), 1]],
}
# npu_bounding_box_decode: the first row is of torch_npu's published values; the newest generation
# does not limit its size, so that it covers the image.
REGIONS, DELTAS = [[1, 2, 3, 4], [1, 2, 3, 4]], [[5, 6, 7, 8], [NAN, 0, 0, 0]]
DECODED = {
    "older": [[2.5, 6.5, 9, 9], [NAN, 2, NAN, 4]],
    "newest": [[0, 0, 10, 10], [0, 2, 0, 4]],
}
# npu_nms_with_mask: the second box overlaps the first by 8 / 16; the third touches it.
ROWS = [[0, 0, 4, 4, 0.9], [0, 0, 4, 2, 0.8], [4, 0, 8, 4, 0.7]]
KEPT = {"older": [1, 0, 1], "newest": [1, 1, 1]}
# npu_one_hot of 2, 0 with on_value 1: float32, or the type of on_value.
HOT = {"older": "float32", "newest": "int64"}
# npu_indexing: begin_mask and end_mask open one bound of each axis, to the newest alone.
SLICED = {"older": [[2]], "newest": [[1, 2], [5, 6]]}
# npu_bert_apply_adam: (max_grad_norm, global_grad_norm, adam_mode) and what the gradient is
# multiplied by.
CLIPPED = {
    "older": {(2.0, 5.0, 0): 1 / 5, (2.0, 5.0, 1): 1 / 5, (0.5, 0.8, 0): 1, (0.0, 5.0, 0): 1},
    "newest": {(2.0, 5.0, 0): 2 / 5, (2.0, 5.0, 1): 1, (0.5, 0.8, 0): 5 / 8, (0.0, 5.0, 0): 1},
}

_CODE = """
import sys
sys.path.insert(0, {folder!r})
import torch
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import CPU, NPU, bind, check_fake, eager, eager_npu, fake_call, make_model, run_model

nan = float("nan")

def check(name, want, position, *arguments, dtype=torch.float32, fake=True):
    op = all_ops()[name]
    sample = Sample(*arguments)
    want = torch.tensor(want, dtype=dtype)
    if fake:
        check_fake(fake_call(op, sample)[position:], [want])
    paths = (
        lambda: op.call_reference(**bind(op, sample)),
        lambda: eager(op, sample),
        lambda: eager_npu(op, sample),
        lambda: run_model(make_model(op, sample, body=False), NPU, op, sample),
        lambda: run_model(make_model(op, sample, body=True), CPU, op, sample),
    )
    for path in paths:
        got = path()[position].cpu()
        assert got.dtype == want.dtype, (name, got.dtype)
        # The values above are rounded to six places.
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=1e-6, equal_nan=True)

def tensor(values):
    return torch.tensor(values, dtype=torch.float32)

check("npu_iou", {overlaps}, 0, tensor({boxes}), tensor({truths}))
plain = [0.0] * 4 + [1.0] * 4
check("npu_bounding_box_decode", {decoded}, 0, tensor({regions}), tensor({deltas}), *plain,
      [10, 10], 0.1)
for overlap, kept in ((0.5, {kept}), (0.0, [1, 0, 1])):
    check("npu_nms_with_mask", kept, 2, tensor({rows}), overlap, dtype=torch.uint8)
hot = [[0, 0, 1], [1, 0, 0]]
for on, dtype in ((1, {hot}), (1.0, "float32"), (True, "bool" if {hot} == "int64" else {hot})):
    check("npu_one_hot", hot, 0, torch.tensor([2, 0]), 1, 3, on, dtype=getattr(torch, dtype))
    if {hot} == "int64":
        check("npu_one_hot", hot, 0, torch.tensor([2, 0]), -1, -1, on, 0,
              dtype=getattr(torch, dtype), fake=False)
table = tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
check("npu_indexing", {sliced}, 0, table, [0, 1], [1, 2], [1, 1], 2, 1)
for (most, norm, mode), factor in {clipped}.items():
    for device in ("cpu", "npu"):
        grad = torch.tensor([0.5, -3.0], device=device)
        out = [torch.zeros_like(grad) for _ in range(3)]
        how = 0.01, 0.0, 0.999, 1e-8, grad, most, norm, 0.0, None, mode
        torch.ops.npu.npu_bert_apply_adam.out(*how, out=out)
        torch.testing.assert_close(out[1], grad * factor)
print("agree")
"""


@pytest.mark.parametrize("generation", ["older", "newest"])
def test_every_path_follows_the_generation(run_python, generation: str) -> None:
    code = _CODE.format(
        folder=str(Path(__file__).parent),
        overlaps=OVERLAPS[generation],
        boxes=BOXES,
        truths=TRUTHS,
        decoded=DECODED[generation],
        regions=REGIONS,
        deltas=DELTAS,
        rows=ROWS,
        kept=KEPT[generation],
        hot=repr(HOT[generation]),
        sliced=SLICED[generation],
        clipped=CLIPPED[generation],
    )
    status, output = run_python(code, ORT_NPU_GENERATION=generation)
    assert status == 0, output
    assert output.endswith("agree\n")


# A model of the other generation: npu_one_hot of 2, 0 with on_value 1 and a depth of -1, which the
# newest counts, or 3. What its file says of the result holds in this process, too.
_EXCHANGED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import onnx
import torch
from onnxruntime_npu.opdef import Sample, all_ops
from onnxruntime_npu.opdef.onnx_schema import register_schemas
from op_paths import CPU, NPU, make_model, run_model

register_schemas()
op = all_ops()["npu_one_hot"]
folder, mine, others = Path({folder!r}), {mine!r}, {others!r}
depths = {{"older": [3], "newest": [3, -1]}}

def path(generation, depth, body):
    return folder / f"{{generation}}{{depth}}{{body}}.onnx"

def sample(depth):
    return Sample(torch.tensor([2, 0]), -1, depth, 1, 0)

for depth in depths[mine]:
    for body in (True, False):
        onnx.save(make_model(op, sample(depth), body=body), path(mine, depth, body))
for other in others:
    dtype = torch.int64 if other == "newest" else torch.float32
    want = torch.tensor([[0, 0, 1], [1, 0, 0]], dtype=dtype)
    for depth in depths[other]:
        for body, provider in ((False, NPU), (True, NPU), (True, CPU)):
            model = onnx.load(path(other, depth, body))
            (got,) = run_model(model, provider, op, sample(depth))
            assert got.dtype == want.dtype and torch.equal(got.cpu(), want), (other, got)
        model = onnx.load(path(other, 3, False))
        model.graph.output[0].ClearField("type")
        (found,) = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.output
        code = onnx.TensorProto.INT64 if other == "newest" else onnx.TensorProto.FLOAT
        assert found.type.tensor_type.elem_type == code, found
print("kept")
"""


def test_a_model_keeps_the_types_of_its_export(run_python, tmp_path) -> None:
    for generation, others in (("newest", []), ("older", ["newest"]), ("newest", ["older"])):
        code = _EXCHANGED.format(
            tests=str(Path(__file__).parent), folder=str(tmp_path), mine=generation, others=others
        )
        status, output = run_python(code, ORT_NPU_GENERATION=generation)
        assert status == 0 and output.endswith("kept\n"), output


def test_another_name_is_refused(run_python) -> None:
    status, output = run_python(
        "from onnxruntime_npu.opdef import all_ops; all_ops()", ORT_NPU_GENERATION="950"
    )
    assert status == 1
    assert "ORT_NPU_GENERATION: expected older or newest, got '950'" in output
