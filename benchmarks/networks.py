#!/usr/bin/env python3
"""Networks as torch.onnx exports them beside onnxruntime's CPU provider and OpenVINO in one run.

MiniLM, ResNet-50, MobileNetV3 and ViT as a whole, and blocks of them and of Llama, with random
weights in float32. In the run of bfloat16 the NPUExecutionProvider has the provider option
float32_matmul_precision=medium and OpenVINO its precision hint; the CPUExecutionProvider has no
such option and stays in float32. The run of int8 has those of ResNet-50 as onnxruntime.quantization
writes them: QuantizeLinear and DequantizeLinear around uint8 activations, and int8 weights with a
scale for each channel, the form that all three engines multiply as integers. Results are compared
before anything is timed. A run takes inputs from the host and returns outputs there.
"""

from __future__ import annotations

import functools
import re
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peers

SEVERAL = 4  # runs of a sample, of the smaller networks
# Relative norm. float32: sums in other orders, through a few dozen layers; bfloat16: products of
# values rounded to 8 bits, in other places in each engine; int8: values halfway between two
# integers, which may become either in each layer.
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2, "int8": 5e-2}
SETTINGS = {"float32": {}, "bfloat16": {"float32_matmul_precision": "medium"}, "int8": {}}
QUANTISED = re.compile("ResNet-50")
CALIBRATION_INPUTS = 4


def bottlenecks(width: int, side: int) -> tuple[Any, tuple[Any, ...]]:
    """Two blocks of a stage of ResNet-50 whose inner width is `width`."""
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolutions = nn.ModuleList(
                [
                    nn.Conv2d(4 * width, width, 1, bias=False),
                    nn.Conv2d(width, width, 3, padding=1, bias=False),
                    nn.Conv2d(width, 4 * width, 1, bias=False),
                ]
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, 4 * width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            for i, (convolve, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
                y = norm(convolve(y))
                y = torch.relu(y if i < 2 else y + x)
            return y

    return nn.Sequential(Bottleneck(), Bottleneck()), (torch.randn(1, 4 * width, side, side),)


def inverted_residual(channels: int, wide: int, side: int) -> tuple[Any, tuple[Any, ...]]:
    """Two blocks of MobileNetV3 with squeeze and excitation."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expand = nn.Sequential(
                nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish()
            )
            self.depthwise = nn.Sequential(
                nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False),
                nn.BatchNorm2d(wide),
                nn.Hardswish(),
            )
            self.scale = nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(wide, wide // 4, 1),
                nn.ReLU(),
                nn.Conv2d(wide // 4, wide, 1),
                nn.Hardsigmoid(),
            )
            self.project = nn.Sequential(
                nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.depthwise(self.expand(x))
            return self.project(y * self.scale(y)) + x

    return nn.Sequential(Block(), Block()), (torch.randn(1, channels, side, side),)


def bert(layers: int, batch: int, tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """Layers of the size of MiniLM, of which all-MiniLM-L6-v2 has six."""
    import torch
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(
                BertConfig(
                    hidden_size=384, num_hidden_layers=layers, num_attention_heads=12,
                    intermediate_size=1536, vocab_size=30522,
                )
            )  # fmt: skip

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(ids, attention_mask=mask).last_hidden_state

    ids = torch.randint(0, 100, (batch, tokens))
    return Encoder(), (ids, torch.ones_like(ids))


def llama(tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """Two layers of the size of SmolLM2-135M."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = LlamaForCausalLM(
                LlamaConfig(
                    hidden_size=576, num_hidden_layers=2, num_attention_heads=9,
                    num_key_value_heads=3, intermediate_size=1536, vocab_size=100,
                )
            )  # fmt: skip

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(ids, attention_mask=mask, use_cache=False).logits

    ids = torch.randint(0, 100, (1, tokens))
    return Decoder(), (ids, torch.ones_like(ids))


def images(network: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """A whole network of vision_networks.py."""
    import torch
    import vision_networks

    side = vision_networks.SIDE
    return getattr(vision_networks, network)(), (torch.randn(batch, 3, side, side),)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "ResNet-50 64 56x56": functools.partial(bottlenecks, 64, 56),
    "ResNet-50 128 28x28": functools.partial(bottlenecks, 128, 28),
    "ResNet-50 256 14x14": functools.partial(bottlenecks, 256, 14),
    "ResNet-50 512 7x7": functools.partial(bottlenecks, 512, 7),
    "MobileNetV3 40-120 28x28": functools.partial(inverted_residual, 40, 120, 28),
    "MobileNetV3 112-672 14x14": functools.partial(inverted_residual, 112, 672, 14),
    "MiniLM, batch 1": functools.partial(bert, 6, 1, 128),
    "MiniLM, batch 32": functools.partial(bert, 6, 32, 128),
    "Llama 576, 128 tokens": functools.partial(llama, 128),
    "Llama 576, 4 tokens": functools.partial(llama, 4),
    "ResNet-50, batch 1": functools.partial(images, "resnet50", 1),
    "ResNet-50, batch 8": functools.partial(images, "resnet50", 8),
    "MobileNetV3, batch 1": functools.partial(images, "mobilenet_v3_large", 1),
    "MobileNetV3, batch 8": functools.partial(images, "mobilenet_v3_large", 8),
    "ViT-B/16, batch 1": functools.partial(images, "VisionTransformer", 1),
    "ViT-B/16, batch 8": functools.partial(images, "VisionTransformer", 8),
}


def export(name: str, path: Path) -> None:
    """Write the network as torch.onnx's own exporter does."""
    import torch

    torch.manual_seed(0)
    model, example = NETWORKS[name]()
    for module in model.modules():  # as trained ones: not the identity
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.normal_(module.running_mean)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), example, path, dynamo=True, verbose=False)


def quantise(floats: Path, path: Path) -> None:
    """Write an exported network of one float input with integers, for random inputs."""
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    value = onnx.load(floats, load_external_data=False).graph.input[0]
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    numbers = np.random.default_rng(1)

    class Inputs(quantization.CalibrationDataReader):
        left = CALIBRATION_INPUTS

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            return None if self.left < 0 else {value.name: numbers.standard_normal(shape, "f4")}

    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(floats), str(prepared))
    quantization.quantize_static(
        prepared, path, Inputs(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    prepared.unlink()


class Runner(ABC):
    """One model at a time; `time` returns the seconds of a run."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.path = ""

    @abstractmethod
    def load(self, path: str) -> list[tuple[str, tuple[int, ...], bool]]:
        """Open a model; return names and shapes of its inputs, and whether they are floats."""

    @abstractmethod
    def run(self) -> Any:
        """Run it and return its output on the host."""

    def result(self, path: str) -> np.ndarray:
        """Return the model's output."""
        if self.path != path:
            self.path = path
            numbers = np.random.default_rng(0)
            self.feeds: dict[str, np.ndarray] = {}
            for i, (name, shape, is_float) in enumerate(self.load(path)):
                if is_float:
                    self.feeds[name] = numbers.standard_normal(shape, np.float32)
                else:  # token ids, then their mask
                    whole = numbers.integers(0, 100, shape)
                    self.feeds[name] = whole if i == 0 else np.ones_like(whole)
        return np.asarray(self.run())

    def time(self, path: str, repeats: int) -> float:
        """Return the seconds of so many runs, after the first one of a model."""
        if self.path != path:
            self.result(path)
        begin = time.perf_counter()
        for _ in range(repeats):
            self.run()
        return time.perf_counter() - begin


class Sessions(Runner):
    """Sessions of onnxruntime on one provider."""

    def __init__(self, provider: str, threads: int, **settings: str) -> None:
        super().__init__(threads)
        self.provider, self.settings = provider, settings

    def load(self, path: str) -> list[tuple[str, tuple[int, ...], bool]]:
        import onnxruntime as ort

        if self.provider.startswith("NPU"):
            import onnxruntime_npu  # noqa: F401  (registers the provider)
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        providers = [(self.provider, self.settings)]
        self.session = ort.InferenceSession(path, options, providers=providers)
        inputs = self.session.get_inputs()
        return [(v.name, tuple(v.shape), v.type == "tensor(float)") for v in inputs]

    def run(self) -> Any:
        return self.session.run(None, self.feeds)[0]


class OpenVino(Runner):
    """Compiled models of OpenVINO, which multiplies in `precision`."""

    def __init__(self, threads: int, precision: str) -> None:
        super().__init__(threads)
        import openvino

        self.core = openvino.Core()
        self.core.set_property(
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": precision,
                "PERFORMANCE_HINT": "LATENCY",
            },
        )

    def load(self, path: str) -> list[tuple[str, tuple[int, ...], bool]]:
        self.request = self.core.compile_model(path, "CPU").create_infer_request()
        inputs = self.request.model_inputs
        return [
            (v.any_name, tuple(v.shape), v.element_type.get_type_name() == "f32") for v in inputs
        ]

    def run(self) -> Any:
        return self.request.infer(self.feeds)[0]


def has_form(name: str, dtype: str) -> bool:
    """Whether the run of `dtype` has this network."""
    return dtype != "int8" or QUANTISED.match(name) is not None


def file_of(name: str, dtype: str, folder: Path) -> Path:
    """Return the network's file, written unless it is there."""
    path = folder / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.onnx"
    if not path.exists():
        export(name, path)
    if dtype != "int8":
        return path
    quantised = path.with_suffix(".int8.onnx")
    if not quantised.exists():
        quantise(path, quantised)
    return quantised


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", list(TOLERANCES), rounds=7)
    parser.add_argument("--unfused", action="store_true", help="also with the option fusion=0")
    arguments = harness.parse_arguments(parser)
    folder = arguments.out / "networks"
    folder.mkdir(exist_ok=True)
    names = [name for name in NETWORKS if re.search(arguments.only, name)]
    python = peers.Peers(harness.FOLDER, ["openvino"]).python
    sessions = functools.partial(Sessions, threads=arguments.threads)
    for dtype in arguments.dtypes:
        paths = {name: file_of(name, dtype, folder) for name in names if has_form(name, dtype)}
        cases = [
            harness.Case(name, repeats, "runs", "time", (str(path), repeats))
            for name, path in paths.items()
            for repeats in [SEVERAL if "batch" not in name or name.endswith(" 1") else 1]
        ]
        npu = functools.partial(sessions, "NPUExecutionProvider", **SETTINGS[dtype])
        specs = {"npu": harness.Spec(npu, ours=True)}
        if arguments.unfused:
            specs["unfused"] = harness.Spec(functools.partial(npu, fusion="0"), ours=True)
        specs["ort"] = harness.Spec(functools.partial(sessions, "CPUExecutionProvider"))
        precision = "bf16" if dtype == "bfloat16" else "f32"
        openvino = functools.partial(OpenVino, arguments.threads, precision)
        specs["openvino"] = harness.Spec(openvino, python=python)
        check = functools.partial(
            harness.compare, method="result", calls=[(str(path),) for path in paths.values()],
            tolerance=TOLERANCES[dtype],
        )  # fmt: skip
        missing: dict[str, str] = {}
        harness.measure(arguments, f"networks-{dtype}", specs, cases, check, missing)
        for name, why in missing.items():
            print(f"{name} is not measured: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
