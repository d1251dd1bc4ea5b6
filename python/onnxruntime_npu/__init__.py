"""NPU execution provider for ONNX Runtime, with the operators and device API of torch_npu.

Importing this package registers ``NPUExecutionProvider`` with the installed ``onnxruntime``, once.
It never imports torch: names that need torch are resolved at their first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from .session.provider_library import get_ep_name, get_ep_names, get_library_path
from .session.registration import register
from .torch_device.torch_hook import define_operators_with_torch
from .version import __version__ as __version__

# Public names defined in a submodule of another name; an operator name needs no entry.
_HOMES = {
    "assignment": "session.node_assignment",
    "ortvalue_from_numpy": "session.ortvalue",
    "ortvalue_from_torch": "session.ortvalue",
    "ortvalue_to_numpy": "session.ortvalue",
    "ortvalue_to_torch": "session.ortvalue",
    "export": "exporter",
    "export_causal_lm": "exporter",
    "export_encoder": "exporter",
    "export_image_text_to_text": "exporter",
    "export_seq2seq": "exporter",
    "NPUModelForCausalLM": "transformers_models",
    "NPUModelForFeatureExtraction": "transformers_models",
    "NPUModelForSeq2SeqLM": "transformers_models",
    "op_table": "opdef",
    "install_as_torch_npu": "torch_npu_compat.torch_npu_alias",
    "Format": "torch_npu_compat.formats",
    "empty_with_format": "torch_npu_compat.formats",
    "empty_with_swapped_memory": "torch_npu_compat.swapped_memory",
    "erase_stream": "torch_npu_compat.stream_uses",
    "get_npu_format": "torch_npu_compat.formats",
    "get_storage_size": "torch_npu_compat.formats",
    "matmul_checksum": "torch_npu_compat.checksum",
    "npu_format_cast_": "torch_npu_compat.formats",
}

__all__ = ["get_ep_name", "get_ep_names", "get_library_path", "register", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name, "ops" if name.startswith("npu_") else name)
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{home}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{home}":
            raise
        home, module = "ops", importlib.import_module(".ops", __name__)
        if not hasattr(module, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = module if home == name and name not in _HOMES else getattr(module, name)
    globals()[name] = value
    return value


register()
define_operators_with_torch()
