"""Import cycles among the modules of a Python package, and among its rooms.

Imports inside functions count as well. A room is a folder or a module directly in the package:
rooms can form a cycle even if no modules do. ``elsewhere`` lists the package's folders that are
stored outside its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def circles(package: Path, elsewhere: Iterable[Path] = ()) -> list[dict[str, list[str]]]:
    """Return each cycle as its modules, with those of the cycle that each imports."""
    return _circles(_import_graph(package, elsewhere))


def room_circles(package: Path, elsewhere: Iterable[Path] = ()) -> list[dict[str, list[str]]]:
    """Return each cycle as its rooms, with those of the cycle that each imports."""
    rooms: dict[str, set[str]] = {}
    for name, imports in _import_graph(package, elsewhere).items():
        imported = rooms.setdefault(_room(name), set())
        imported.update(_room(other) for other in imports if _room(other) != _room(name))
    return _circles(rooms)


def _room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _import_graph(package: Path, elsewhere: Iterable[Path]) -> dict[str, set[str]]:
    modules = dict(_modules(package, package.name))
    for folder in elsewhere:
        modules.update(_modules(folder, f"{package.name}.{folder.name}"))
    return {name: _imports(name, path, modules) for name, path in modules.items()}


def _circles(imports: dict[str, set[str]]) -> list[dict[str, list[str]]]:
    return [
        {name: sorted(imports[name] & circle) for name in sorted(circle)}
        for circle in _components(imports)
        if len(circle) > 1
    ]


def _modules(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.py")):
        parts = (name, *path.relative_to(folder).with_suffix("").parts)
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imports(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Modules of the package that a module imports, except under TYPE_CHECKING."""
    found: set[str] = set()
    home = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                # An extension module of the package has no Python source and is a leaf.
                found.add(inner if inner in modules or alias.name in ("_C", "_torch") else source)
        pending.extend(ast.iter_child_nodes(node))
    return {module for module in found if module in modules and module != name}


def _components(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components (Kosaraju)."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _visit(start, graph, seen, order)
    reverse: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            reverse[target].add(name)
    seen.clear()
    components = []
    for start in reversed(order):
        if start not in seen:
            component: list[str] = []
            _visit(start, reverse, seen, component)
            components.append(set(component))
    return components


def _visit(start: str, graph: dict[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Append unseen reachable nodes to ``order`` in post-order."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(graph[start])))]
    while stack:
        name, targets = stack[-1]
        unseen = next((target for target in targets if target not in seen), None)
        if unseen is None:
            order.append(name)
            stack.pop()
        else:
            seen.add(unseen)
            stack.append((unseen, iter(sorted(graph[unseen]))))
