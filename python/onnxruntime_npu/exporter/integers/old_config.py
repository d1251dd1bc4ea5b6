"""How GPTQ and AWQ tools described what they wrote, before config.json had a place for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_GPTQ, _AWQ = "quantize_config.json", "quant_config.json"  # of AutoGPTQ and AutoAWQ
_AWQ_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}


def old_quantization(folder: Path, tensors: Iterable[str]) -> dict[str, Any] | None:
    """Return the ``quantization_config`` that a file beside config.json stands for, or None.

    None, too, if none of the tensors is of integers: some folders have the file of another model.
    """
    if not any(name.endswith(".qweight") for name in tensors):
        return None
    for name, method in ((_GPTQ, "gptq"), (_AWQ, "awq")):
        try:
            values: Any = json.loads((folder / name).read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            config: dict[str, Any] = {"quant_method": method}
            for key, value in values.items():
                config[_AWQ_NAMES.get(key) or key] = value
            return config
    return None
