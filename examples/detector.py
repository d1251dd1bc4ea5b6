#!/usr/bin/env python3
"""Trains a two-stage detector of fused operators on npu, exports it and runs it on each provider.

A backbone of npu_conv2d, a region proposal network with npu_nms_v4, npu_roi_align, and a head whose
boxes npu_bounding_box_decode reads and npu_nms_with_mask thins out. It finds bright rectangles in
small noisy images. Every operator has a portable body, so the exported file runs on any provider.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnxruntime_npu as torch_npu
import torch
from torch import Tensor
from torch.nn import functional
from training import CPU, NPU, largest_difference, train

SIZE, STRIDE, CHANNELS = 64, 8, 16
ANCHOR_SIDES = (12.0, 20.0)
PROPOSALS, POOLED = 8, 4
LEARNING_RATE = 3e-3
# Means and deviations of the deltas, and the clip of their scale, as in Faster R-CNN.
NORMALISATION = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
SCALE_CLIP = 0.016


class Convolution(torch.nn.Module):
    """A 3x3 convolution by npu_conv2d."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out, channels, 3, 3) / (3 * channels**0.5))
        self.bias = torch.nn.Parameter(torch.zeros(out))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        stride = [self.stride, self.stride]
        return torch_npu.npu_conv2d(x, self.weight, self.bias, stride, [1, 1], [1, 1], 1)


def anchors() -> Tensor:
    """Return the anchors [cells * sides, 4], x1, y1, x2, y2, in the order of the RPN's results."""
    centres = torch.arange(SIZE // STRIDE) * STRIDE + STRIDE / 2
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    half = torch.tensor(ANCHOR_SIDES) / 2
    x, y = (v.flatten()[:, None].expand(-1, len(half)) for v in (x, y))
    return torch.stack([x - half, y - half, x + half - 1, y + half - 1], -1).reshape(-1, 4)


def decode(boxes: Tensor, deltas: Tensor) -> Tensor:
    """Return the boxes that the deltas make of boxes, within the image."""
    return torch_npu.npu_bounding_box_decode(
        boxes, deltas, *NORMALISATION, [SIZE, SIZE], SCALE_CLIP
    )


def encode(boxes: Tensor, truth: Tensor) -> Tensor:
    """Return the deltas that make the truth of boxes."""
    return torch_npu.npu_bounding_box_encode(boxes, truth.expand_as(boxes), *NORMALISATION)


class Detector(torch.nn.Module):
    """Finds at most PROPOSALS objects in an image [1, 1, SIZE, SIZE]."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Sequential(
            Convolution(1, CHANNELS, 2),
            torch.nn.ReLU(),
            Convolution(CHANNELS, CHANNELS, 2),
            torch.nn.ReLU(),
            Convolution(CHANNELS, CHANNELS, 2),
            torch.nn.ReLU(),
        )
        self.rpn = Convolution(CHANNELS, 5 * len(ANCHOR_SIDES))
        self.head = torch.nn.Linear(CHANNELS * POOLED * POOLED, 2 + 4)
        self.register_buffer("anchors", anchors())

    def propose(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores [anchors] and deltas [anchors, 4] of the region proposal network."""
        rows = self.rpn(features)[0].permute(1, 2, 0).reshape(-1, 5)
        return rows[:, 0], rows[:, 1:]

    def regions(self, scores: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor]:
        """Return the proposed boxes [PROPOSALS, 4], constants, and how many of them count."""
        boxes, scores = decode(self.anchors, deltas.detach()), scores.detach()
        chosen, count = torch_npu.npu_nms_v4(
            boxes[:, [1, 0, 3, 2]],
            scores.sigmoid(),
            PROPOSALS,
            torch.tensor(0.5, device=boxes.device),
            torch.tensor(0.1, device=boxes.device),
        )
        return boxes[chosen.long()], count

    def classify(self, features: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [n, 2] of background and object, and deltas [n, 4], of regions."""
        rois = torch.cat([torch.zeros_like(boxes[:, :1]), boxes], 1)
        pooled = torch_npu.npu_roi_align(features, rois, 1 / STRIDE, POOLED, POOLED, 2, 1)
        rows = self.head(pooled.flatten(1))
        return rows[:, :2], rows[:, 2:]

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes [n, 4] and scores [n] by descending score, and which of them count, [n]."""
        features = self.backbone(image)
        boxes, count = self.regions(*self.propose(features))
        logits, deltas = self.classify(features, boxes)
        scores = logits.softmax(1)[:, 1]
        scores = torch.where(torch.arange(PROPOSALS, device=scores.device) < count, scores, 0.0)
        scores, order = scores.topk(PROPOSALS)
        rows = torch.cat([decode(boxes, deltas)[order], scores[:, None]], 1)
        rows, _, kept = torch_npu.npu_nms_with_mask(rows, 0.3)
        return rows[:, :4], rows[:, 4], (kept > 0) & (scores > 0.5)

    def loss(self, image: Tensor, truth: Tensor) -> Tensor:
        """Return the sum of both stages' losses for an image with one object, truth [1, 4]."""
        features = self.backbone(image)
        scores, deltas = self.propose(features)
        overlap = torch_npu.npu_iou(self.anchors, truth)[0]
        positive = overlap >= torch.minimum(overlap.max(), overlap.new_tensor(0.5))
        objectness = functional.binary_cross_entropy_with_logits(scores, positive.float())
        first = objectness + box_loss(deltas, encode(self.anchors, truth), positive)

        proposed, _ = self.regions(scores, deltas)
        proposed = torch.cat([proposed, truth + truth.new_tensor([-2.0, 1.0, 1.0, 2.0]), truth])
        positive = torch_npu.npu_iou(proposed, truth)[0] > 0.5
        logits, deltas = self.classify(features, proposed)
        labels = torch.stack([~positive, positive], 1).float()
        losses = torch_npu.npu_softmax_cross_entropy_with_logits(logits, labels)
        return first + losses.mean() + box_loss(deltas, encode(proposed, truth), positive)


def box_loss(deltas: Tensor, targets: Tensor, positive: Tensor) -> Tensor:
    """Return the mean smooth L1 loss of the positive rows."""
    losses = functional.smooth_l1_loss(deltas, targets, reduction="none").mean(1)
    return torch.where(positive, losses, 0.0).sum() / positive.sum()


def sample(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a noisy image [1, 1, SIZE, SIZE] with one bright rectangle, and its box [1, 4]."""
    image = torch.randn(1, 1, SIZE, SIZE, generator=generator) * 0.1
    width, height = (int(n) for n in torch.randint(10, 24, (2,), generator=generator))
    x = int(torch.randint(0, SIZE - width, (1,), generator=generator))
    y = int(torch.randint(0, SIZE - height, (1,), generator=generator))
    image[..., y : y + height, x : x + width] += 1
    return image, torch.tensor([[x, y, x + width - 1.0, y + height - 1.0]])


def main() -> None:
    """Train, export, compare the providers, and print what the detector finds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("detector.onnx"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Detector()
    losses = train(model, sample, arguments.steps, LEARNING_RATE)
    tenth = max(len(losses) // 10, 1)
    print(f"loss {sum(losses[:tenth]) / tenth:.3f} -> {sum(losses[-tenth:]) / tenth:.3f}")

    image, truth = sample(torch.Generator().manual_seed(1))
    for provider, difference in largest_difference(model, image, arguments.out, (NPU, CPU)).items():
        print(f"{provider}: differs from eager on npu by {difference:.1e}")
    boxes, scores, counts = model(image)
    print(f"truth {truth[0].tolist()}")
    for box, score in zip(boxes[counts], scores[counts], strict=True):
        print(f"found {[round(v, 1) for v in box.tolist()]} with score {score:.2f}")


if __name__ == "__main__":
    main()
