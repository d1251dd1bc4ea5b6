"""The schemes by name: how many bits weights and activations have."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scheme:
    """Bits of weights and activations, and how activations get their scales.

    ``activation`` is ``"float"``, ``"dynamic"`` (a scale per token, computed in the model) or
    ``"static"`` (one scale per layer, from calibration, where that is exact enough). ``grouped``
    weights have a scale for each group of rows of a column, others one per column. ``compensated``:
    calibration improves the rounding of weights. ``smoothed``: calibration chooses factors between
    activations and weights.
    """

    name: str
    weight_bits: int
    activation: str
    grouped: bool = False
    compensated: bool = False
    smoothed: bool = False

    @property
    def calibrated(self) -> bool:
        """Whether the scheme takes calibration."""
        return self.compensated or self.smoothed

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Refuse weights of a dtype for which the scheme's operators have no results."""
        only_16_bits = self.activation == "float" or self.weight_bits == 4
        if only_16_bits and dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(
                f"[quantize_weights] expected a model of float16 or bfloat16 for {self.name}, "
                f"got {dtype}; convert it first, model.to(torch.bfloat16)"
            )


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("w8a16", weight_bits=8, activation="float"),
        Scheme("w4a16", weight_bits=4, activation="float", grouped=True, compensated=True),
        Scheme("w4a8", weight_bits=4, activation="dynamic", grouped=True),
        Scheme("w8a8", weight_bits=8, activation="static", smoothed=True),
        Scheme("w8a8_dynamic", weight_bits=8, activation="dynamic", smoothed=True),
    )
}


def scheme_named(name: str) -> Scheme:
    """Return the scheme of a name, or refuse it with those that exist."""
    if name not in SCHEMES:
        raise ValueError(
            f"[quantize_weights] expected a scheme of {', '.join(SCHEMES)}, got {name!r}"
        )
    return SCHEMES[name]
