"""Nodes of the general operators as torch_npu's exporter writes them; see test_upstream_nodes."""

from __future__ import annotations

import pytest
import torch
from upstream_nodes import Row, check_node

_GENERATOR = torch.Generator().manual_seed(11)


def _float(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def _boxes(*shape: int) -> torch.Tensor:
    corners = torch.rand((*shape, 2), generator=_GENERATOR) * 20
    return torch.cat([corners, corners + 1 + torch.rand((*shape, 2), generator=_GENERATOR) * 9], -1)


_DELTAS = {f"{name}{k}": float(name == "stds") for name in ("means", "stds") for k in range(4)}
_IOU = {"trans": 0, "is_cross": 0, "mode": 0}
_LAYER = {"batch_first": 0, "bidirectional": 0, "dropout": 0.0, "has_biases": 1, "num_layers": 1}
_LAYER |= {"train": 0}
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")

ROWS = [
    Row(
        "NPUOneHot",
        "npu_one_hot",
        {"self": torch.tensor([5, 3, 2, 1], dtype=torch.int32)},
        {"depth": 5, "num_classes": -1, "off_value": 0, "on_value": 1},
    ),
    Row("NPUFormatCast", "_npu_format_cast", {"self": _float(3, 3)}, {"acl_format": 2}),
    Row("NPUSlice", "npu_slice", {"self": _float(2, 5)}, {"offsetss": [0, 0], "sizes": [2, 2]}),
    Row(
        "NPUIndexing",
        "npu_indexing",
        {"self": _float(2, 4)},
        {"begins": [0, 0], "ends": [2, 2], "strides": [1, 1], **dict.fromkeys(_MASKS, 0)},
    ),
    Row("NPUSignBitsPack", "npu_sign_bits_pack", {"self": _float(14)}, {"size": 2}),
    Row(
        "NPUSignBitsUnpack",
        "npu_sign_bits_unpack",
        {"input": torch.arange(40, dtype=torch.uint8)},
        {"dtype": 0, "size": 8},
    ),
    Row(
        "NPUSoftmaxCrossEntropyWithLogits",
        "npu_softmax_cross_entropy_with_logits",
        {"self": _float(1, 4), "labels": _float(1, 4)},
    ),
    Row(
        "NPUIou", "npu_iou", {"bboxes": _boxes(3).half(), "gtboxes": _boxes(4).half()}, {"mode": 0}
    ),
    Row(
        "NPUGiou",
        "npu_giou",
        {"self": _boxes(4).t(), "gtboxes": _boxes(4).t()},
        {**_IOU, "trans": 1},
    ),
    Row("NPUDiou", "npu_diou", {"self": _boxes(4).t(), "gtboxes": _boxes(4).t()}, _IOU),
    Row(
        "NPUCiou",
        "npu_ciou",
        {"self": _boxes(8).t(), "gtboxes": _boxes(8).t()},
        {**_IOU, "atan_sub_flag": 0},
    ),
    Row(
        "NPUNmsV4",
        "npu_nms_v4",
        {
            "self": _boxes(100),
            "scores": _float(100),
            "iou_threshold": torch.tensor(0.5),
            "scores_threshold": torch.tensor(0.3),
        },
        {"max_output_size": 20, "pad_to_max_output_size": 0},
        2,
    ),
    Row(
        "NPUNmsWithMask",
        "npu_nms_with_mask",
        {"input": torch.cat([_boxes(9), _float(9, 1)], 1)},
        {"iou_threshold": 0.5},
        3,
    ),
    Row(
        "NPUBatchNms",
        "npu_batch_nms",
        {"self": _boxes(2, 30, 1), "scores": _float(2, 30, 3)},
        {
            "change_coordinate_frame": 0,
            "iou_threshold": 0.5,
            "max_size_per_class": 3,
            "max_total_size": 4,
            "score_threshold": 0.3,
            "transpose_box": 0,
        },
        4,
    ),
    Row(
        "NPUBoundingBoxEncode",
        "npu_bounding_box_encode",
        {"anchor_box": _boxes(2).half(), "ground_truth_box": _boxes(2).half()},
        _DELTAS,
    ),
    Row(
        "NPUBoundingBoxDecode",
        "npu_bounding_box_decode",
        {"rois": _boxes(2), "deltas": _float(2, 4)},
        {**_DELTAS, "max_shapes": [10, 10], "wh_ratio_clip": 0.1},
    ),
    Row(
        "NPUYoloBoxesEncode",
        "npu_yolo_boxes_encode",
        {
            "self": _boxes(2),
            "gt_bboxes": _boxes(2),
            "stride": torch.tensor([2, 2], dtype=torch.int32),
        },
        {"performance_mode": 0},
    ),
    Row(
        "NPUAnchorResponseFlags",
        "npu_anchor_response_flags",
        {"self": _boxes(100)},
        {"featmap_sizes": [60, 60], "num_base_anchors": 9, "strides": [2, 2]},
    ),
    Row(
        "NPURoiAlign",
        "npu_roi_align",
        {"self": _float(1, 2, 6, 6), "rois": torch.tensor([[0.0, -2.0, -2.0, 22.0, 22.0]])},
        {
            "pooled_height": 3,
            "pooled_width": 3,
            "roi_end_mode": 0,
            "sample_num": 2,
            "spatial_scale": 0.25,
        },
    ),
    Row(
        "NPUPsRoiPooling",
        "npu_ps_roi_pooling",
        {"self": _float(2, 8, 4, 4).half(), "rois": _float(2, 5, 1).abs().half()},
        {"group_size": 2, "output_dim": 2, "spatial_scale": 0.5},
    ),
    Row(
        "NPURotatedIou",
        "npu_rotated_iou",
        {"self": _float(2, 2, 5).abs(), "query_boxes": _float(2, 3, 5).abs()},
        {"e_threshold": 0.0, "is_cross": 1, "mode": 0, "trans": 0, "v_threshold": 0.0},
    ),
    Row(
        "NPURotatedOverlaps",
        "npu_rotated_overlaps",
        {"self": _float(1, 3, 5).abs(), "query_boxes": _float(1, 4, 5).abs()},
        {"trans": 0},
    ),
    Row(
        "NPULstm",
        "npu_lstm",
        {
            "input": _float(5, 3, 10).half(),
            "weight": _float(15, 20).half() / 4,
            "bias": _float(20).half(),
            "seq_mask": torch.full((5,), 3, dtype=torch.int32),
            "h": _float(1, 3, 5).half(),
            "c": _float(1, 3, 5).half(),
        },
        {**_LAYER, "direction": 0, "flagSeq": 0},
        8,
    ),
    Row(
        "NPUGru",
        "npu_gru",
        {
            "input": _float(6, 3, 10).half(),
            "hx": _float(1, 3, 6).half(),
            "weight_input": _float(10, 18).half() / 4,
            "weight_hidden": _float(6, 18).half() / 4,
            "bias_input": _float(18).half(),
            "bias_hidden": _float(18).half(),
            "seq_length": torch.tensor([6], dtype=torch.int32),
        },
        _LAYER,
        6,
    ),
    Row(
        "NPUDeformableConv2d",
        "npu_deformable_conv2d",
        {
            "input": _float(2, 4, 6, 6),
            "weight": _float(3, 4, 3, 3) / 4,
            "offset": _float(2, 27, 6, 6),
            "bias": torch.zeros(0).numpy(),
        },
        {
            "deformable_groups": 1,
            "dilations": [1, 1, 1, 1],
            "groups": 1,
            "kernel_sizes": [3, 3],
            "modulated": 1,
            "paddings": [1, 1, 1, 1],
            "strides": [1, 1, 1, 1],
        },
        2,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op_type)
def test_general_node_runs(row: Row) -> None:
    check_node(row)
