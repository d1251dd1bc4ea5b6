"""Blocks of networks as torch.onnx's own exporter writes them, fused, against onnxruntime."""

from __future__ import annotations

import io
import warnings
from collections import Counter

import numpy as np
import onnxruntime as ort
import pytest
import torch
from fusion_models import fused_nodes
from provider_models import CPU, npu_session
from torch import nn

GLU = "npu.fused:SwiGlu"


def exported(model: nn.Module, example: tuple, dynamic: bool = False) -> bytes:
    axes = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("s", min=2, max=64)}
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(),
            example,
            dynamo=True,
            verbose=False,
            dynamic_shapes=tuple(axes for _ in example) if dynamic else None,
        )
    program.save(file)
    return file.getvalue()


def check(model: bytes, feeds: list[np.ndarray]) -> Counter:
    """Compare with the CPU provider: float32 sums of a few hundred products, through up to ten
    layers, in other orders. Returns how many nodes each fused operator computes.
    """
    reference = ort.InferenceSession(model, providers=[CPU])
    named = dict(zip((i.name for i in reference.get_inputs()), feeds, strict=True))
    session = npu_session(model)
    expected = reference.run(None, named)
    for actual, wanted in zip(session.run(None, named), expected, strict=True):
        assert np.ptp(wanted) > 0.1
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)
    return Counter(fused_nodes(session).values())


class Bottleneck(nn.Module):
    """Of ResNet-50, with a convolution in the residual."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(8, 4, 1), (4, 4, 3), (4, 16, 1), (8, 16, 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, k, padding=k // 2, bias=False), nn.BatchNorm2d(b))
            for a, b, k in widths
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.layers[1](torch.relu(self.layers[0](x))))
        return torch.relu(self.layers[2](y) + self.layers[3](x))


class InvertedResidual(nn.Module):
    """Of MobileNetV3, with squeeze and excitation; SiLU and ReLU6 are those of its relatives."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(8, 24, 1), nn.Conv2d(24, 8, 1)
        self.depthwise = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.head, self.tail = nn.Conv2d(8, 12, 1), nn.Conv2d(12, 12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.hardswish(self.depthwise(nn.functional.hardswish(self.expand(x))))
        scale = torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))
        y = self.project(y * nn.functional.hardsigmoid(self.excite(scale))) + x
        return nn.functional.silu(self.tail(nn.functional.relu6(self.head(y))))


@pytest.mark.parametrize(
    ("block", "groups"),
    # Conv and activation, and in the last of the bottleneck the sum: 2 + 2 + 3. HardSwish and
    # SiLU are one or two nodes. The convolutions of one position in the second have one order.
    [
        (Bottleneck, {"npu.channels_last:FusedConv": 7, "npu.channels_last:Conv": 1}),
        (
            InvertedResidual,
            {
                "npu.channels_last:FusedConv": 11, "npu.channels_last:GlobalAveragePool": 1,
                "npu.channels_last:Mul": 1, "npu.fused:FusedConv": 4,
            },
        ),
    ],
)  # fmt: skip
def test_convolutions(block, groups):
    torch.manual_seed(0)
    model = block()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.normal_(layer.running_mean)
    x = torch.randn(2, 8, 14, 14)
    assert check(exported(model, (x,)), [x.numpy()]) == groups


class Encoder(nn.Module):
    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.model = BertModel(
            BertConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=64,
                vocab_size=50,
            )
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(ids, attention_mask=mask).last_hidden_state


class Decoder(nn.Module):
    def __init__(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        self.model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=64,
                vocab_size=50,
            )
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(ids, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize(
    ("build", "others"),
    # Of a Llama's layer two norms of seven nodes, and one behind the last layer; two rotary
    # embeddings of seven nodes, and the gate's three.
    [
        (Encoder, {"npu.fused:ActivatedMatMul": 2 * 3}),
        (Decoder, {"RMSNormalization": 5 * 7, "npu:NPURotaryMul": 2 * 2 * 7, GLU: 2 * 3}),
    ],
)
def test_language_models(rng, build, others):
    """Batches and lengths of any size; the sequences are padded on the left."""
    torch.manual_seed(0)
    ids, mask = torch.randint(0, 50, (2, 8)), torch.ones(2, 8, dtype=torch.long)
    model = exported(build(), (ids, mask), dynamic=True)
    shape = (3, 11)
    padding = np.ones(shape, np.int64)
    padding[1, :4] = 0
    counts = check(model, [rng.integers(0, 50, shape), padding])
    # A softmax, its mask and the replacement of what is no number, three products, and what
    # turns K: at least ten nodes of each of two layers.
    assert counts.pop("Attention") >= 20
    assert counts == others
