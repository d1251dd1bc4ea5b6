"""ResNet-50, MobileNetV3-Large and ViT-B/16 by their shapes, with random weights."""

from __future__ import annotations

import torch
from torch import nn

SIDE = 224


def normalised(
    channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:  # fmt: skip
    """A convolution, its batch normalisation and an activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*layers, *([] if activation is None else [activation]))


class Bottleneck(nn.Module):
    """[N, channels, H, W] → [N, 4 * width, H / stride, W / stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            normalised(channels, width, 1, activation=nn.ReLU()),
            normalised(width, width, 3, stride, activation=nn.ReLU()),
            normalised(width, 4 * width, 1),
        )
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else normalised(channels, 4 * width, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        normalised(3, 64, 7, 2, activation=nn.ReLU()), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for i, count in enumerate((3, 4, 6, 3)):
        width = 64 << i
        for block in range(count):
            layers.append(Bottleneck(channels, width, 2 if i > 0 and block == 0 else 1))
            channels = 4 * width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a function of all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = (channels // 4 + 4) // 8 * 8
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), nn.ReLU(),
            nn.Conv2d(inner, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


class InvertedResidual(nn.Module):
    """A wide depthwise convolution between two pointwise ones."""

    def __init__(
        self, channels: int, wide: int, out: int, kernel: int, stride: int, excite: bool,
        activation: type[nn.Module],
    ) -> None:  # fmt: skip
        super().__init__()
        layers = (
            [] if wide == channels else [normalised(channels, wide, 1, activation=activation())]
        )
        layers.append(normalised(wide, wide, kernel, stride, wide, activation()))
        if excite:
            layers.append(SqueezeExcitation(wide))
        self.body = nn.Sequential(*layers, normalised(wide, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + x if self.adds else self.body(x)


# Kernel, wide channels, channels out, squeeze-and-excitation, stride of each block; the first six
# with ReLU, the others with hard-swish.
MOBILENET_V3_LARGE = [
    (3, 16, 16, False, 1), (3, 64, 24, False, 2), (3, 72, 24, False, 1), (5, 72, 40, True, 2),
    (5, 120, 40, True, 1), (5, 120, 40, True, 1), (3, 240, 80, False, 2), (3, 200, 80, False, 1),
    (3, 184, 80, False, 1), (3, 184, 80, False, 1), (3, 480, 112, True, 1), (3, 672, 112, True, 1),
    (5, 672, 160, True, 2), (5, 960, 160, True, 1), (5, 960, 160, True, 1),
]  # fmt: skip


def mobilenet_v3_large() -> nn.Module:
    layers: list[nn.Module] = [normalised(3, 16, 3, 2, activation=nn.Hardswish())]
    channels = 16
    for i, (kernel, wide, out, excite, stride) in enumerate(MOBILENET_V3_LARGE):
        activation = nn.ReLU if i < 6 else nn.Hardswish
        layers.append(InvertedResidual(channels, wide, out, kernel, stride, excite, activation))
        channels = out
    layers.append(normalised(channels, 960, 1, activation=nn.Hardswish()))
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish()]
    return nn.Sequential(*layers, *head, nn.Linear(1280, 1000))


class VisionTransformer(nn.Module):
    """ViT-B/16: [N, 3, 224, 224] → [N, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        width = 768
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (SIDE // 16) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 12, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.encoder(x)[:, 0]))
