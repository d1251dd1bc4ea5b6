"""Runs an action right after the first import of a module, without importing it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, action: Callable[[], None]) -> None:
    """Run the action now if the module is loaded, otherwise after its import; once by name."""
    if name in sys.modules:
        action()
    elif not any(isinstance(f, _Finder) and f.name == name for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(MetaPathFinder):
    """Finds the module by the other finders and runs the action after its import.

    It stays until then: packages such as transformers ask whether there is a torch, by
    ``importlib.util.find_spec``, long before they import it.
    """

    def __init__(self, name: str, action: Callable[[], None]):
        self.name = name
        self._action = action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        others = [f for f in sys.meta_path if f is not self and hasattr(f, "find_spec")]
        found = (f.find_spec(name, path, target) for f in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._action()

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
