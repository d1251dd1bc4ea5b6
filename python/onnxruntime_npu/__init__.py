"""NPU execution provider for ONNX Runtime, with the operators and device API of torch_npu.

Importing this package registers ``NPUExecutionProvider`` with the installed ``onnxruntime``, once.
It never imports torch: names that need torch are resolved at their first use.

- Sessions: ``InferenceSession("model.onnx", providers=["NPUExecutionProvider"])``, and
  ``assignment(session)`` for the provider of each node.
- Values in NPU memory: ``ortvalue_from_numpy``, ``ortvalue_to_numpy``, and the same for torch.
- Export from torch: ``export``, ``export_causal_lm``, ``export_encoder``, ``export_seq2seq``,
  ``export_image_text_to_text``.
- Text from what was exported: ``generation.CausalLM``, ``NPUModelForCausalLM``.
- Quantisation, and ONNX files of other exporters: ``converters``.
- Operators with torch_npu's names, such as ``npu_rms_norm``; ``dir(onnxruntime_npu)`` lists them.
- The device API, ``torch.npu``: ``npu``. Scripts of torch_npu: ``install_as_torch_npu``.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .extras import missing_package, told_extra
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

# Modules that users read; others belong to the package.
_MODULES = ("converters", "errors", "generation", "npu", "ops", "sampling", "torch_device")

__all__ = ["get_ep_name", "get_ep_names", "get_library_path", "register", *_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name, "ops" if name.startswith("npu_") else name)
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = _find(name, home)
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        extra = "torch" if package == "torch" and not _needs(home)[1:] else "export"
        raise told_extra(f"{__name__}.{name}", error, extra) from error
    globals()[name] = value
    return value


def _find(name: str, home: str) -> Any:
    try:
        module = importlib.import_module(f".{home}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{home}":
            raise
        home, module = "ops", importlib.import_module(".ops", __name__)
        if not hasattr(module, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return module if home == name and name not in _HOMES else getattr(module, name)


def _needs(home: str) -> tuple[str, ...]:
    """Return the packages without which a module's names are not there."""
    if home in ("exporter", "transformers_models", "converters"):
        return ("torch", "transformers", "onnx")
    return ("torch",) if home.startswith("torch_npu_compat") or home == "ops" else ()


def __dir__() -> list[str]:
    """List the public names that the installed packages allow: ``help`` resolves each of them."""
    operators = importlib.import_module(".ops", __name__).torch_names()  # its stub has these alone
    homes = {
        **{name: "ops" for name in operators if not name.startswith("_")},
        **{name: name for name in _MODULES},
        **_HOMES,
    }
    found = {home: all(map(importlib.util.find_spec, _needs(home))) for home in {*homes.values()}}
    special = (name for name in globals() if name.startswith("__"))
    eager = (name for name in __all__ if name not in _HOMES)
    return sorted({*special, *eager, *(name for name, home in homes.items() if found[home])})


register()
define_operators_with_torch()
