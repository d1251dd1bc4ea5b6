#!/usr/bin/env python3
"""Trains a bidirectional LSTM of npu_lstm on npu to read lines of glyphs, exports and runs it.

Each line is an image of four columns a glyph, noisy. Half of the glyphs differ only in their last
column, half only in their first, so that a column is recognised from both sides.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnxruntime_npu as torch_npu
import torch
from torch import Tensor
from training import CPU, NPU, largest_difference, train

GLYPHS, HEIGHT, WIDTH, LENGTH = 6, 8, 4, 5
HIDDEN = 24
BATCH, LEARNING_RATE = 16, 1e-2  # lines of a step


class Direction(torch.nn.Module):
    """One direction of an LSTM layer over [T, B, inputs]."""

    def __init__(self, inputs: int, hidden: int, *, backwards: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(inputs + hidden, 4 * hidden) / hidden**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(4 * hidden))
        self.hidden, self.backwards = hidden, backwards

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden state of every step, [T, B, hidden]."""
        state = x.new_zeros(1, x.shape[1], self.hidden)
        # has_biases, num_layers, dropout, train, bidirectional, batch_first: one layer, time first.
        layer = True, 1, 0.0, False, False, False
        mask = x.new_zeros(1)  # not read without flag_seq
        return torch_npu.npu_lstm(
            x, self.weight, self.bias, mask, state, state, *layer, False, self.backwards
        )[0]


class Recogniser(torch.nn.Module):
    """Gives every column of lines [B, HEIGHT, T] the logits of its glyph."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards = Direction(HEIGHT, HIDDEN, backwards=False)
        self.backwards = Direction(HEIGHT, HIDDEN, backwards=True)
        self.classes = torch.nn.Linear(2 * HIDDEN, GLYPHS)

    def forward(self, lines: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [T, B, GLYPHS] and the most likely glyphs [T, B]."""
        columns = lines.permute(2, 0, 1).contiguous()
        states = torch.cat([self.forwards(columns), self.backwards(columns)], 2)
        logits = self.classes(states)
        return logits, logits.argmax(2)

    def loss(self, lines: Tensor, glyphs: Tensor) -> Tensor:
        """Return the mean cross entropy of the columns; glyphs: [B, T]."""
        logits = self(lines)[0].flatten(0, 1)
        labels = torch.nn.functional.one_hot(glyphs.t().flatten(), GLYPHS).float()
        return torch_npu.npu_softmax_cross_entropy_with_logits(logits, labels).mean()


def font() -> Tensor:
    """Return the glyphs [GLYPHS, HEIGHT, WIDTH], which share all columns but one."""
    generator = torch.Generator().manual_seed(7)
    shape = (torch.rand(HEIGHT, WIDTH, generator=generator) > 0.5).float()
    glyphs = shape.repeat(GLYPHS, 1, 1)
    for i, own in enumerate(torch.eye(HEIGHT)[:GLYPHS]):
        glyphs[i, :, 0 if i < GLYPHS // 2 else WIDTH - 1] = own
    return glyphs


def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noisy lines [size, HEIGHT, T] and the glyph of each column [size, T]."""
    chosen = torch.randint(0, GLYPHS, (size, LENGTH), generator=generator)
    lines = font()[chosen].permute(0, 2, 1, 3).flatten(2)
    lines = lines + 0.1 * torch.randn(lines.shape, generator=generator)
    return lines, chosen.repeat_interleave(WIDTH, 1)


def main() -> None:
    """Train, export, compare with both providers, and print how many columns are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("recogniser.onnx"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Recogniser()
    losses = train(model, lambda g: batch(BATCH, g), arguments.steps, LEARNING_RATE)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    lines, glyphs = batch(32, torch.Generator().manual_seed(1))
    found = largest_difference(model, lines, arguments.out, (NPU, CPU))
    for provider, difference in found.items():
        print(f"{provider}: differs from eager on npu by {difference:.1e}")
    right = (model(lines)[1].t() == glyphs).float().mean()
    print(f"{100 * right:.1f} % of the columns recognised")


if __name__ == "__main__":
    main()
