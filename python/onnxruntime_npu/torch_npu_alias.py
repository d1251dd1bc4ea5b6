"""``install_as_torch_npu()``: scripts that import ``torch_npu`` get this package, unmodified."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .errors import UnsupportedError

ALIAS = "torch_npu"
_PACKAGE = __name__.rpartition(".")[0]
_OBJECTS = {"torch_npu.npu.aclnn"}  # modules of torch_npu that are objects with properties here


def install_as_torch_npu() -> None:
    """Make ``import torch_npu`` give this package, and ``torch_npu.x.y`` its submodules.

    Opt-in, for this process, idempotent. Tensors get the device ``npu`` as with ``import torch``.

    Raises:
        UnsupportedError: the real torch_npu is loaded already.
    """
    package = sys.modules[_PACKAGE]
    if sys.modules.get(ALIAS, package) is not package:
        raise UnsupportedError(
            "install_as_torch_npu expected that torch_npu is not imported yet, got the one of "
            f"{getattr(sys.modules[ALIAS], '__file__', 'another package')}; call it before the "
            "first import of torch_npu"
        )
    sys.modules[ALIAS] = package
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())


class _AliasFinder(MetaPathFinder):
    """Finds ``torch_npu.x.y`` where ``onnxruntime_npu.x.y`` is."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(ALIAS + "."):
            return None
        ours = _PACKAGE + name.removeprefix(ALIAS)
        if name in _OBJECTS:
            return ModuleSpec(name, _AliasLoader(ours))
        if ours not in sys.modules and importlib.util.find_spec(ours) is None:
            return None
        return ModuleSpec(name, _AliasLoader(ours))


class _AliasLoader(Loader):
    """Puts the package's own module in the place of the one that the import system made."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        parent, _, name = self._ours.rpartition(".")
        if module.__name__ in _OBJECTS:
            ours = getattr(importlib.import_module(parent), name)
        else:
            ours = importlib.import_module(self._ours)
        sys.modules[module.__name__] = ours
