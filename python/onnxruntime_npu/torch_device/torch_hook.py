"""Registers the operators and the device as soon as torch is imported, without importing it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def define_operators_with_torch() -> None:
    """Define the operators now if torch is loaded, otherwise right after its import."""
    if "torch" in sys.modules:
        _define()
    elif not any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchFinder())


def _define() -> None:
    try:
        from ..opdef.torch_library import register

        if not register():  # the real torch_npu owns both names
            return
    except Exception as error:  # torch's import must not fail because of this package
        warnings.warn(f"onnxruntime_npu could not define torch.ops.npu: {error}", stacklevel=2)
    try:
        from .. import torch_device

        if torch_device.is_built():
            torch_device.register()
    except Exception as error:
        warnings.warn(f"torch has no device 'npu': {error}", stacklevel=2)


class _TorchFinder(MetaPathFinder):
    """Finds torch by the other finders and runs the definitions after its import.

    It stays until then: packages such as transformers ask whether there is a torch, by
    ``importlib.util.find_spec``, long before they import it.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        found = (f.find_spec(name, path, target) for f in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_define(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _define()

        spec.loader.exec_module = execute_and_define  # type: ignore[method-assign]
        return spec
