"""``install_as_torch_npu()``: unmodified scripts that import ``torch_npu`` get this package."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType

from ..errors import UnsupportedError

ALIAS = "torch_npu"
_PACKAGE = __name__.partition(".")[0]
_OBJECTS = {"torch_npu.npu.aclnn"}  # modules of torch_npu that are objects with properties here


def install_as_torch_npu() -> None:
    """Make ``import torch_npu`` import this package, and ``torch_npu.x.y`` its submodules.

    Opt-in, for this process, idempotent. Tensors get the device ``npu`` as with ``import torch``.

    Raises:
        UnsupportedError: the real torch_npu is already loaded.
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


class _AliasDistribution(Distribution):
    """Metadata of ``torch_npu`` for ``importlib.metadata``: the version of this package."""

    def read_text(self, filename: str) -> str | None:
        version = sys.modules[_PACKAGE].__version__
        files = {
            "METADATA": f"Metadata-Version: 2.1\nName: {ALIAS}\nVersion: {version}\n",
            "top_level.txt": f"{ALIAS}\n",
        }
        return files.get(filename)

    def locate_file(self, path: object) -> Path:  # type: ignore[override]
        return Path(str(sys.modules[_PACKAGE].__file__)).parent / str(path)


class _AliasFinder(DistributionFinder):
    """Finds ``torch_npu.x.y`` where ``onnxruntime_npu.x.y`` is, and torch_npu's metadata."""

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterator[Distribution]:
        """Yield the alias for the name torch_npu or torch-npu, or in a search for all."""
        name = getattr(context, "name", None)
        if name is None or re.sub(r"[-_.]+", "_", name).lower() == ALIAS:
            yield _AliasDistribution()

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
    """Replaces the module created by the import system by the package's own module."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        parent, _, name = self._ours.rpartition(".")
        if module.__name__ in _OBJECTS:
            ours = getattr(importlib.import_module(parent), name)
        else:
            ours = importlib.import_module(self._ours)
        sys.modules[module.__name__] = ours
