"""Builds the exported decoder from a transformers model, replacing proven parts by role.

Norms and MLPs that cannot be proven equal to an ``npu::`` operator are kept. Embedding, positions,
masks, attention and the residual structure cannot be kept, since the cache interface depends on
them: if one of them is not proven, the model is exported by its own forward pass (original.py).
"""

from __future__ import annotations

import torch
from torch import nn

from ..progress import progress
from .proof import Findings, attempt
from .roles.decoder import Decoder, DecoderRole, parts_of
from .roles.layer import LayerRole
from .roles.masking import MaskingRole
from .roles.probes import CutOut

_SEED = 20240607


def substitute(model: nn.Module) -> tuple[Decoder, Findings]:
    """Return the decoder of a transformers causal language model in float32, and the findings.

    Raises NotProven that names the part that differs.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return _proven(model)


def _proven(model: nn.Module) -> tuple[Decoder, Findings]:
    findings = Findings()
    parts = attempt(parts_of, model)
    cut_out = attempt(CutOut, model, parts.layers, parts.embedding)
    decoder = DecoderRole(cut_out, findings).replace(model, findings)
    masks = [MaskingRole(cut_out).replace(given, findings) for given in cut_out.given]
    for index, mask in enumerate(progress(masks, "Proving layers", "layer")):
        site = f"layers.{index}"
        role = LayerRole(parts.rotary, mask.window, findings, site, first=index == 0)
        decoder.layers.append(role.replace(parts.layers[index], findings, site))
    return decoder.eval(), findings
