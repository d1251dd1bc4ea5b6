"""The decoder as exported: modules that call ``npu::`` operators, few nodes per layer.

Each stands for one role of the original model; ``substitution.py`` builds them from the original's
weights and proves them on it. Linear weights are kept as [in, out], the operand order of ONNX
MatMul, so that the file holds them as they are used. Symbols in shapes: B batch, S new tokens,
T past and new tokens, H hidden size, Nq and Nkv heads, D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .caches import Step


class RmsNorm(nn.Module):
    """RMSNorm as ``npu_rms_norm``, or ``npu_add_rms_norm`` when a residual is added before it."""

    def __init__(self, gamma: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(gamma, requires_grad=False)
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [.., H]."""
        return torch.ops.npu.npu_rms_norm(x, self.gamma, self.epsilon)[0]

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return norm(x + residual) and the sum, both of x's shape [.., H]."""
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, self.gamma, self.epsilon)
        return normed, total


class KeptNorm(nn.Module):
    """A norm that is no RMSNorm, left as it was."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [.., H]."""
        return self.original(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return norm(x + residual) and the sum, both of x's shape [.., H]."""
        total = residual + x
        return self.original(total), total


class Linear(nn.Module):
    """``x @ weight + bias`` with the weight as [in, out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @staticmethod
    def joined(*layers: nn.Linear) -> Linear:
        """Return one projection that computes those of ``layers`` side by side."""
        weight = torch.cat([layer.weight.detach() for layer in layers]).t().contiguous()
        if all(layer.bias is None for layer in layers):
            return Linear(weight, None)
        biases = [
            weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
            for layer in layers
        ]
        return Linear(weight, torch.cat(biases))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        y = torch.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias


class SwigluMlp(nn.Module):
    """``down(silu(gate(x)) * up(x))`` with one MatMul for gate and up, then ``npu_swiglu``."""

    def __init__(self, gate_up: Linear, down: Linear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x [B, S, H]."""
        return self.down(torch.ops.npu.npu_swiglu(self.gate_up(x), -1))


class DenseExperts(nn.Module):
    """The experts of a routed MLP, each computed for every token and weighted by the router.

    Tokens sorted by expert would have sizes that depend on their values, which no graph of fixed
    operators has; weights gathered per token would outgrow memory with the length of the prompt.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: nn.Module) -> None:
        """Take gate_up [E, 2 I, H] and down [E, H, I] of E experts of inner size I."""
        super().__init__()
        self.gate_up, self.down = (
            nn.Parameter(w.transpose(1, 2).contiguous(), requires_grad=False)
            for w in (gate_up, down)
        )
        self.activation = activation

    def forward(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform x [tokens, H] by the experts [tokens, k] with weights [tokens, k]."""
        shares = torch.zeros(x.shape[0], self.down.shape[0], dtype=weights.dtype)
        # A router chooses no expert twice; onnxruntime's CPU provider adds no float16 here.
        shares = shares.scatter(1, experts, weights).to(x.dtype)
        gate, up = torch.matmul(x, self.gate_up).chunk(2, dim=-1)
        y = torch.matmul(self.activation(gate) * up, self.down)
        return (y * shares.t()[..., None]).sum(0)


class RotaryTables(nn.Module):
    """Cosine and sine of the rotary angles of each position, computed in float32.

    Computed rather than looked up: a table for 131072 positions would outweigh a small model.
    """

    frequencies: torch.Tensor

    def __init__(self, frequencies: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies)  # [D], each angle as wide as the head
        self.scaling = scaling

    def forward(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [B, 1, S, D] for positions [B, 1, S, 1]."""
        angles = positions.to(torch.float32) * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return cos.to(dtype), sin.to(dtype)


class Attention(nn.Module):
    """Grouped-query attention: joint projection, ``npu_rotary_mul``, cache, fused attention."""

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        *,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None,
        rotary_mode: str | None,
        q_norm: RmsNorm | None = None,
        k_norm: RmsNorm | None = None,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.out = out
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.heads = heads
        self.kv_heads = kv_heads
        self.scale = scale
        self.window = window
        self.rotary_mode = rotary_mode

    @property
    def head_size(self) -> int:
        """D, the size of a query, key or value vector."""
        return self.qkv.weight.shape[1] // (self.heads + 2 * self.kv_heads)

    def forward(
        self, x: torch.Tensor, step: Step, past: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Attend from x [B, S, H]; return [B, S, H] and the updated cache of this layer."""
        heads = self.qkv(x).unflatten(-1, (self.heads + 2 * self.kv_heads, -1)).transpose(1, 2)
        query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotary_mode is not None:
            rotate = torch.ops.npu.npu_rotary_mul
            query = rotate(query, step.cos, step.sin, self.rotary_mode)
            key = rotate(key, step.cos, step.sin, self.rotary_mode)
        key, value = step.update(past[0], key), step.update(past[1], value)
        attended = step.attend(
            query,
            key,
            value,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            scale=self.scale,
            window=self.window,
        )
        return self.out(attended.flatten(2)), (key, value)


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer. The residual is carried unadded, for the next norm to add it."""

    def __init__(
        self,
        input_norm: RmsNorm | KeptNorm,
        attention: Attention,
        post_norm: RmsNorm | KeptNorm,
        mlp: nn.Module,
    ) -> None:
        super().__init__()
        self.input_norm = input_norm
        self.attention = attention
        self.post_norm = post_norm
        self.mlp = mlp

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        step: Step,
        past: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return what is still to be added, the residual [B, S, H] and the layer's cache."""
        if residual is None:
            normed, residual = self.input_norm(x), x
        else:
            normed, residual = self.input_norm.add(x, residual)
        attended, present = self.attention(normed, step, past)
        normed, residual = self.post_norm.add(attended, residual)
        return self.mlp(normed), residual, present


class Decoder(nn.Module):
    """Token ids to logits over a cache, the whole of the exported graph."""

    def __init__(
        self,
        embedding: torch.Tensor,
        head: torch.Tensor | None,
        rotary: RotaryTables | None,
        layers: list[DecoderLayer],
        norm: RmsNorm | KeptNorm,
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(embedding, requires_grad=False)  # [V, H]
        # None: tied. One parameter then serves both ends, and the file holds one copy.
        self.head = None if head is None else nn.Parameter(head, requires_grad=False)
        self.rotary = rotary
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def convert(self, dtype: torch.dtype) -> None:
        """Convert the weights; rotary angles need float32 whatever the weights are."""
        rotary, self.rotary = self.rotary, None
        self.to(dtype)
        self.rotary = rotary

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look input_ids [B, S] up: [B, S, H]."""
        return nn.functional.embedding(input_ids, self.embedding)

    def tables(self, positions: torch.Tensor) -> tuple[Any, Any]:
        """Return cos and sin for positions [B, 1, S, 1]; None without rotary embedding."""
        if self.rotary is None:
            return None, None
        return self.rotary(positions, self.embedding.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score hidden [rows, H] against the vocabulary: [rows, V], float32 for whoever samples."""
        head = self.embedding if self.head is None else self.head
        return nn.functional.linear(hidden, head).float()

    def forward(
        self,
        input_ids: torch.Tensor,
        step: Step,
        past: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Return the last norm's output [B, S, H] and the cache of every layer."""
        x = self.embed(input_ids)
        residual: torch.Tensor | None = None
        present = []
        for layer, layer_past in zip(self.layers, past, strict=True):
            x, residual, layer_present = layer(x, residual, step, layer_past)
            present.append(layer_present)
        assert residual is not None  # a decoder has layers
        return self.norm.add(x, residual)[0], present
