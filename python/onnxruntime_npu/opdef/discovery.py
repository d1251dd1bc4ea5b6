"""Finds the definitions: every ``<root>/<family>/<op>.py``. There is no list of operators.

A file ``_<name>.py`` or a folder ``_<name>`` defines none: it holds code shared by several
definitions of the family, which import it with ``from ._<name> import ...``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from .composition import Composition
from .definition import Op
from .node_parts import DefinitionError

EXTRA_ROOTS_VARIABLE = "ORT_NPU_CONTRIB_OPS"  # additional roots, separated like PATH
_PACKAGE = "onnxruntime_npu.contrib_ops"


def default_roots() -> list[Path]:
    """Return the folder of the package's own definitions and those named by the environment."""
    package = Path(__file__).resolve().parent.parent
    installed, checkout = package / "contrib_ops", package.parent.parent / "contrib_ops"
    roots = [installed if installed.is_dir() else checkout]
    extra = os.environ.get(EXTRA_ROOTS_VARIABLE, "")
    return roots + [Path(p) for p in extra.split(os.pathsep) if p]


def load_definitions(roots: Iterable[Path]) -> dict[str, Op | Composition]:
    """Read all definitions under ``roots``; the result is sorted by operator name.

    Raises DefinitionError when a file cannot be read as a definition or two define the same name.
    """
    ops: dict[str, Op | Composition] = {}
    torch_names: dict[str, str] = {}
    types: dict[str, str] = {}
    for root in roots:
        if not root.is_dir():
            raise DefinitionError(f"expected a folder of operator definitions at {root}")
        for path in sorted(root.glob("*/*.py")):
            if path.name.startswith("_"):
                continue
            for op in _load_file(path):
                for schema in (*op.torch_schemas(), *(p.schema for p in op.partners)):
                    other = torch_names.setdefault(schema.name, str(path))
                    if other != str(path):
                        raise DefinitionError(f"{schema.name} is defined in {other} and {path}")
                if isinstance(op, Op):
                    other = types.setdefault(op.onnx_type, str(path))
                    if other != str(path):
                        raise DefinitionError(f"{op.onnx_type} is the type in {other} and {path}")
                ops[op.name] = op
    return dict(sorted(ops.items()))


@lru_cache(maxsize=1)
def _all_definitions() -> dict[str, Op | Composition]:
    return load_definitions(default_roots())


@lru_cache(maxsize=1)
def all_ops() -> dict[str, Op]:
    """Return the operators with a kernel of the default roots, read once."""
    return {n: op for n, op in _all_definitions().items() if isinstance(op, Op)}


@lru_cache(maxsize=1)
def all_compositions() -> dict[str, Composition]:
    """Return the operators of the default roots that consist of standard ones."""
    return {n: op for n, op in _all_definitions().items() if isinstance(op, Composition)}


def _make_importable(folder: Path) -> None:
    """Create a package for the family, for imports within it."""
    for name, place in ((_PACKAGE, folder.parent), (f"{_PACKAGE}.{folder.name}", folder)):
        package = sys.modules.setdefault(name, ModuleType(name))
        places = list(getattr(package, "__path__", []))
        if str(place) not in places:
            package.__path__ = [*places, str(place)]


def _load_file(path: Path) -> list[Op | Composition]:
    _make_importable(path.parent)
    name = f"{_PACKAGE}.{path.parent.name}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"cannot read {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise DefinitionError(f"{path}: {error}") from error
    ops = [value for value in vars(module).values() if isinstance(value, (Op, Composition))]
    if not ops:
        raise DefinitionError(f"{path}: expected 'op = npu_op(...)' or 'op = composition(...)'")
    for op in ops:
        op.source = str(path)
        op.doc = (module.__doc__ or "").strip()
    return ops
