#!/usr/bin/env python3
"""Networks as torch.onnx exports them, with fusion and without, interleaved in one run.

ResNet-50, MobileNetV3 and ViT as a whole, and blocks of them, of BERT and of Llama, with random
weights. The engines are
NPUExecutionProvider, the same with the provider option fusion set to 0, and onnxruntime's
CPUExecutionProvider; results are compared before anything is timed. Samples are seconds of
processor time of all threads, so that other work on the machine does not count.
"""

from __future__ import annotations

import functools
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

REPEATS = 4  # runs of a sample
TOLERANCE = 1e-4  # float32 sums in other orders, through a few layers


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


def bert(tokens: int) -> tuple[Any, tuple[Any, ...]]:
    """Two layers of the size of MiniLM."""
    import torch
    from transformers import BertConfig, BertModel

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(
                BertConfig(
                    hidden_size=384, num_hidden_layers=2, num_attention_heads=12,
                    intermediate_size=1536, vocab_size=100,
                )
            )  # fmt: skip

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(ids, attention_mask=mask).last_hidden_state

    ids = torch.randint(0, 100, (1, tokens))
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
    "BERT 384, 128 tokens": functools.partial(bert, 128),
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


class Sessions:
    """`time(path)` returns the seconds of a few runs; the first one of a model is not counted."""

    def __init__(self, provider: str, threads: int, **settings: str) -> None:
        self.provider, self.threads, self.settings = provider, threads, settings
        self.path = ""

    def bind(self, path: str) -> None:
        """Open the model and make its inputs."""
        import onnxruntime as ort
        import onnxruntime_npu  # noqa: F401  (registers the provider)

        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        self.session = ort.InferenceSession(
            path, options, providers=[(self.provider, self.settings)]
        )
        numbers = np.random.default_rng(0)
        self.feeds = {}
        for i, value in enumerate(self.session.get_inputs()):
            if value.type == "tensor(float)":
                self.feeds[value.name] = numbers.standard_normal(value.shape, np.float32)
            else:  # token ids, then their mask
                whole = numbers.integers(0, 100, value.shape)
                self.feeds[value.name] = whole if i == 0 else np.ones_like(whole)

    def result(self, path: str) -> np.ndarray:
        """Return the model's output."""
        if self.path != path:
            self.path = path
            self.bind(path)
        return np.asarray(self.session.run(None, self.feeds)[0])

    def time(self, path: str) -> float:
        """Return the seconds of a run."""
        self.result(path)
        begin = time.process_time()
        for _ in range(REPEATS):
            self.session.run(None, self.feeds)
        return (time.process_time() - begin) / REPEATS


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=7)
    arguments = harness.parse_arguments(parser)
    folder = arguments.out / "networks"
    folder.mkdir(exist_ok=True)
    paths = {
        name: folder / f"{i}.onnx"
        for i, name in enumerate(NETWORKS)
        if re.search(arguments.only, name)
    }
    for name, path in paths.items():
        export(name, path)
    npu = functools.partial(Sessions, "NPUExecutionProvider", arguments.threads)
    specs = {
        "npu": harness.Spec(npu, ours=True),
        "unfused": harness.Spec(functools.partial(npu, fusion="0"), ours=True),
        "ort": harness.Spec(functools.partial(Sessions, "CPUExecutionProvider", arguments.threads)),
    }
    cases = [harness.Case(name, 1, "run", "time", (str(path),)) for name, path in paths.items()]
    check = functools.partial(
        harness.compare, method="result", calls=[case.arguments for case in cases],
        tolerance=TOLERANCE,
    )  # fmt: skip
    harness.measure(arguments, "networks-float32", specs, cases, check)


if __name__ == "__main__":
    main()
