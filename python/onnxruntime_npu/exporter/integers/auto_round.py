"""auto-round: the layouts of GPTQ and AWQ, by ``packing_format`` of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .awq import Awq
from .format import Format, Layer
from .gptq import Gptq
from .integer_weight import IntegerWeight

# Of other methods, with a colon between parts such as auto_round:llm_compressor and auto_round:mlx.
_OTHERS = ("fp8", "llm_compressor", "mlx", "fake", "gguf")
_ROTATIONS = ("rotation_config", "spinquant_config")


class AutoRound(Format):
    """``W[i, o] = (q[i, o] - zero[g, o]) * scale[g, o]`` with i in group g.

    Layers of other bits or groups, which ``extra_config`` lists, are found by their shapes.
    """

    method = "auto-round"
    aliases = ("intel/auto-round",)

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        packing = _packing(config)
        kind = str(config.get("data_type") or "int")
        if any(other in packing for other in _OTHERS) or not kind.startswith("int"):
            raise ValueError(
                f"expected auto-round's packing_format auto_round, auto_round:auto_gptq or "
                f"auto_round:auto_awq of integers, got {packing!r} of {kind}"
            )
        if (config.get("act_bits") or 16) < 16:
            raise ValueError(
                f"expected auto-round's weights of float activations, got act_bits "
                f"{config['act_bits']}"
            )
        rotated = next((name for name in _ROTATIONS if config.get(name)), None)
        if rotated is not None:
            raise ValueError(f"expected auto-round's weights as they are, got {rotated}")
        sizes = {name: config.get(name) for name in ("bits", "group_size")}
        self._reader: Format
        if "awq" in packing:
            self._reader = Awq(sizes)
        else:
            # Only what is called GPTQ, but not GPTQModel, stores zero points less one.
            less_one = "gptq" in packing and "gptqmodel" not in packing
            layout = "gptq" if less_one else "gptq_v2"
            self._reader = Gptq({**sizes, "checkpoint_format": layout})

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        return self._reader.read(layer, tensors)


def _packing(config: Mapping[str, Any]) -> str:
    """Return the layout; older versions called it ``backend``, which now chooses a kernel."""
    for name in ("packing_format", "backend"):
        value = str(config.get(name) or "auto")
        if value != "auto":
            return value
    return "auto_round:auto_gptq"
