"""Which tests of the suites count: those that use only implemented functions and plain torch.

The rule is mechanical. A test uses the names in its own source and, transitively, in what it
references in its file: its class's helper methods and fixtures, its bases, functions, decorators,
constants. Of these names

- ``torch_npu.x``, ``torch.ops.npu.x`` and methods ``tensor.npu_x()`` must be operators of
  ``op_table()``, or names of the device API's table that belong to ``torch_npu`` itself;
- ``torch.npu.x.y`` and ``torch_npu.npu.x.y`` must begin with a row of the device API's table,
  ``torch_npu.utils.x`` likewise;
- everything else of torch is plain, except the packages in FOREIGN;
- a module that the file imports, and that is not installed, not built or not in this torch, makes
  all its tests ineligible, as does a name that this torch's module does not have, and what the file
  does at import counts for all.
"""

import ast
import contextlib
import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Packages that are neither aten operators nor in the tables.
FOREIGN = {
    "torch.cuda": "CUDA",
    "torch.testing._internal.common_cuda": "CUDA",
    "torch.distributed.rpc": "remote procedure calls",
    "torch._inductor": "the inductor compiler",
    "torch.distributed.elastic.rendezvous.etcd_server": "the program etcd",
    "torch.utils.cpp_extension": "a C++ extension against torch_npu's headers",
    "torchair": "torchair",
}
# Names that are required in addition to the tables' rows, and the helpers of this folder.
_BESIDE = {
    "torch_npu.testing",
    "torch_npu.utils.collect_env",
    "torch_npu.__version__",
    "torch_npu.Format",
    "torch_npu.get_npu_format",
    "torch_npu.get_storage_size",
    "torch_npu.npu_format_cast",
    "torch_npu.npu_format_cast_",
    "torch_npu.distributed.is_hccl_available",
    "torch_npu.distributed._is_support_hccl_comm_name",
    "torch_npu.distributed._make_hccl_premul_sum",
    "torch_npu.distributed.all_gather_into_tensor_uneven",
    "torch_npu.distributed.reduce_scatter_tensor_uneven",
    "torch_npu.empty_with_format",
    "torch_npu.empty_with_swapped_memory",
    "torch_npu.npu.is_bf16_supported",
    "torch_npu.npu.ExternalStream",
    "torch_npu.npu._get_rng_state_offset",
    "torch_npu.npu._set_rng_state_offset",
    "torch_npu.npu._sleep",
    "torch_npu.npu.amp",
    "torch_npu.npu.host_empty_cache",
    "torch_npu.npu.host_memory_stats",
    "torch_npu.npu.host_memory_stats_as_nested_dict",
    "torch_npu.npu.reset_accumulated_host_memory_stats",
    "torch_npu.npu.reset_peak_host_memory_stats",
}
_FIXTURES = ("setUp", "tearDown", "setUpClass", "tearDownClass")


def _has(module, name):
    """Whether a module of torch has the name, a module or not."""
    try:
        found = hasattr(importlib.import_module(module), name)
    except Exception:  # the test that imports it tells
        return True
    if found:
        return True
    with contextlib.suppress(ModuleNotFoundError):  # of a module that is no package
        return importlib.util.find_spec(f"{module}.{name}") is not None
    return False


def _exists(module):
    if module.startswith("torch._C"):  # made by compiled code: they cannot be looked up
        return True
    if module in sys.modules:  # torch.backends.cudnn is an object there, which has no spec
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False


@dataclass
class Names:
    """Implemented names, as ``torch_npu.…``."""

    built: set[str]

    @classmethod
    def of_this_build(cls):
        """Reads the operators' and the device API's tables."""
        from onnxruntime_npu import ops
        from onnxruntime_npu.npu.api_table import ROWS

        operators = {f"torch_npu.{name}" for name in ops.torch_names()}
        return cls(operators | {f"torch_npu.{row.name}" for row in ROWS} | _BESIDE)

    def lacks(self, name):
        """Whether no prefix of a dotted name is implemented; a bare module name is not a use."""
        parts = name.split(".")
        if any(built.startswith(f"{name}.") for built in self.built):
            return False
        return not any(".".join(parts[:n]) in self.built for n in range(2, len(parts) + 1))


@dataclass
class _Scope:
    """A definition at the top of a file, or a method: the names it uses."""

    dotted: set[str] = field(default_factory=set)
    refers: set[str] = field(default_factory=set)  # other definitions of the file


class TestFile:
    """The tests of one file and why each does not count, if so."""

    def __init__(self, path: Path, names: Names):
        self._names = names
        self._aliases = {"torch": "torch"}
        self._scopes = {}
        self._methods = {}  # class -> its method names
        self._bases = {}
        self._missing = {}  # local name or "" -> module that is not installed
        tree = ast.Module([], [])
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError as error:
            self._missing[""] = f"is no Python: {error.msg}"
        self._folder = path.parent
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
        self._at_import = _Scope()
        for node in tree.body:
            self._define(node)
        self.tests = {
            f"{cls}.{method}": self._why_not(cls, method)
            for cls, methods in self._methods.items()
            for method in methods
            if method.startswith("test")
        }

    def why_not(self, test: str) -> str:
        """Why a test does not count; empty if it does. ``test_x_int8`` is made from ``test_x``."""
        cls, _, method = test.partition(".")
        owners = [cls, *self._ancestors(cls)]
        fitting = [
            known
            for known in self.tests
            if known.partition(".")[0] in owners and method.startswith(known.partition(".")[2])
        ]
        return self.tests[max(fitting, key=len)] if fitting else self._file_reason()

    def _import(self, node):
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                self._aliases[local] = alias.name if alias.asname else local
                self._note_missing(alias.name)
        elif node.module and not node.level:
            for alias in node.names:
                self._aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            self._note_missing(node.module)
            if node.module.partition(".")[0] == "torch" and node.module not in self._missing:
                for alias in node.names:
                    self._note_missing_name(node.module, alias.name)

    def _note_missing(self, module):
        top = module.partition(".")[0]
        if module.startswith("torch_npu.") and self._names.lacks(module):
            self._missing[module] = f"imports {module}, which is not built"
        local = (self._folder / f"{top}.py").exists() or (self._folder / top).is_dir()
        if top not in ("torch_npu", "torch") and not local and not importlib.util.find_spec(top):
            self._missing[top] = f"imports {top}, which is not installed"
        if top == "torch" and not _exists(module):
            self._missing[module] = f"imports {module}, which this torch does not have"

    def _note_missing_name(self, module, name):
        foreign = any(module.startswith(package) for package in FOREIGN)
        if name != "*" and not foreign and not _has(module, name):
            full = f"{module}.{name}"
            self._missing[full] = f"imports {full}, which this torch does not have"

    def _define(self, node):
        if isinstance(node, ast.ClassDef):
            self._methods[node.name] = []
            self._bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
            own = self._scopes[node.name] = _Scope()
            for child in [*node.body, *node.decorator_list, *node.bases]:
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self._methods[node.name].append(child.name)
                    self._scopes[f"{node.name}.{child.name}"] = self._read(child)
                else:
                    self._merge(own, self._read(child))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._scopes[node.name] = self._read(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        self._scopes[name.id] = self._read(node)
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            for child in ast.iter_child_nodes(node):
                self._define(child)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._merge(self._at_import, self._read(node))

    @staticmethod
    def _merge(into, other):
        into.dotted |= other.dotted
        into.refers |= other.refers

    def _read(self, node):
        scope = _Scope()
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute):
                self._read_attribute(child, scope)
            elif isinstance(child, ast.Name):
                scope.refers.add(child.id)
                if self._aliases.get(child.id, "").count("."):
                    scope.dotted.add(self._aliases[child.id])
        return scope

    def _read_attribute(self, node, scope):
        parts = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            parts.insert(0, value.attr)
            value = value.value
        if isinstance(value, ast.Name) and value.id in ("self", "cls"):
            scope.refers.add(f"self.{parts[0]}")
            if node.attr.startswith("npu_") and len(parts) > 1:
                scope.dotted.add(f"torch_npu.{node.attr}")
        elif isinstance(value, ast.Name) and value.id in self._aliases:
            scope.dotted.add(".".join([self._aliases[value.id], *parts]))
        else:
            if isinstance(value, ast.Name):
                scope.refers.add(f"{value.id}.{parts[0]}")  # a method if the name is a class
            if node.attr.startswith("npu_"):
                scope.dotted.add(f"torch_npu.{node.attr}")

    def _ancestors(self, cls):
        for base in self._bases.get(cls, ()):
            if base in self._methods:
                yield base
                yield from self._ancestors(base)

    def _file_reason(self):
        return next(iter(self._missing.values()), "")

    def _why_not(self, cls, method):
        if self._missing:
            return self._file_reason()
        lineage = [cls, *self._ancestors(cls)]
        todo = [f"{owner}.{name}" for owner in lineage for name in (method, *_FIXTURES)] + lineage
        seen = set()
        used = set(self._at_import.dotted)
        todo += self._at_import.refers
        while todo:
            name = todo.pop()
            if name in seen or name not in self._scopes:
                continue
            seen.add(name)
            used |= self._scopes[name].dotted
            for other in self._scopes[name].refers:
                own = other.removeprefix("self.")
                todo += [f"{owner}.{own}" for owner in lineage] if own != other else [other]
                if other in self._methods and other not in lineage:  # a helper class: all of it
                    todo += [f"{other}.{m}" for m in self._methods[other]]
        return next(filter(None, map(self._reason, sorted(used))), "")

    def _reason(self, dotted):
        name = dotted
        for spelling in ("torch.ops.npu", "torch._C._npu"):
            if name.startswith(spelling + "."):
                name = "torch_npu" + name.removeprefix(spelling)
        if name.startswith("torch.npu."):
            name = "torch_npu" + name.removeprefix("torch")
        for package, what in FOREIGN.items():
            if name == package or name.startswith(package + "."):
                return f"needs {what} ({dotted})"
        if name.startswith("torch_npu.") and self._names.lacks(name):
            return f"{dotted} is not built"
        return ""
