"""tools/import_circles.py finds modules that import each other, in any form."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import import_circles


def circles_of(folder: Path, **files: str) -> list[list[str]]:
    package = folder / "package"
    package.mkdir()
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return [list(circle) for circle in import_circles.circles(package)]


def test_import_inside_a_function_closes_a_cycle(tmp_path):
    a = "from .b import f\n"
    b = "def f():\n    from . import a\n    return a\n"
    assert circles_of(tmp_path, __init__="", a=a, b=b) == [["package.a", "package.b"]]


def test_package_itself_can_be_part_of_a_cycle(tmp_path):
    a = "import package\n"
    assert circles_of(tmp_path, __init__="from .a import x\n", a=a) == [["package", "package.a"]]


def test_type_checking_and_extension_imports_close_no_cycle(tmp_path):
    a = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import f\n"
    b = "from . import _C, a\n"
    assert circles_of(tmp_path, __init__="from . import b\n", a=a, b=b) == []


def test_folders_elsewhere_belong_to_the_package(tmp_path):
    package, elsewhere = tmp_path / "package", tmp_path / "converters"
    for folder, name, text in (
        (package, "a", "def f():\n    from .converters import b\n"),
        (elsewhere, "b", "from package.a import f\n"),
    ):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        (folder / f"{name}.py").write_text(text)
    found = [list(circle) for circle in import_circles.circles(package, [elsewhere])]
    assert found == [["package.a", "package.converters.b"]]
    rooms = [list(circle) for circle in import_circles.room_circles(package, [elsewhere])]
    assert rooms == [["package.a", "package.converters"]]
    assert import_circles.circles(package) == []


def test_subpackages_can_be_cyclic_without_cyclic_modules(tmp_path):
    package = tmp_path / "package"
    for room, files in {
        "a": {"low": "", "high": "from ..b.middle import f\n"},
        "b": {"middle": "def f():\n    from ..a import low\n    return low\n"},
        "c": {"top": "from ..a import high\nfrom . import other\n", "other": ""},
    }.items():
        (package / room).mkdir(parents=True)
        for name, text in {"__init__": "", **files}.items():
            (package / room / f"{name}.py").write_text(text)
    (package / "__init__.py").write_text("from .c import top\n")
    assert import_circles.circles(package) == []
    circle = {"package.a": ["package.b"], "package.b": ["package.a"]}
    assert import_circles.room_circles(package) == [circle]
