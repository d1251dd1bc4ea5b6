#!/usr/bin/env python3
"""Format, lint, type and documentation checks: what `make check` and pre-commit run.

Exits 1 and names each failing check. With --fix, rewrites what can be rewritten.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import import_circles
import loops_outside_kernels
import one_definition

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PYTHON_FOLDERS = ["python", "contrib_ops", "converters", "tests", "benchmarks", "examples", "tools"]
CPP_SUFFIXES = (".cc", ".h")


def tracked_files() -> list[Path]:
    """Files that git does not ignore; build outputs are not checked."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def run(*command: str | Path) -> bool:
    return subprocess.run([str(part) for part in command], cwd=ROOT).returncode == 0


def python_paths() -> list[str]:
    return [
        *(folder for folder in PYTHON_FOLDERS if any((ROOT / folder).rglob("*.py"))),
        "setup.py",
    ]


def check_ruff_format(fix: bool, _: list[Path]) -> bool:
    return run(BIN / "ruff", "format", *([] if fix else ["--check"]), *python_paths())


def check_ruff_lint(fix: bool, _: list[Path]) -> bool:
    return run(BIN / "ruff", "check", *(["--fix"] if fix else []), *python_paths())


def check_clang_format(fix: bool, files: list[Path]) -> bool:
    sources = [path for path in files if path.suffix in CPP_SUFFIXES]
    return run(BIN / "clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources)


def check_types(_fix: bool, _: list[Path]) -> bool:
    return run(BIN / "mypy", "python/onnxruntime_npu", "converters", "--exclude", "contrib_ops")


def check_machine_names(_fix: bool, files: list[Path]) -> bool:
    """Published files contain no path of a developer's machine and no registry host."""
    pattern = re.compile(
        r"(?:^|[\s\"'=(])/(?:work|root|home)/|pypi\.org|files\.pythonhosted|registry\.npmjs|deb\.debian"
    )
    ok = True
    for path in files:
        if path == Path(__file__) or path.suffix in {".png", ".onnx"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                print(f"{path.relative_to(ROOT)}:{number}: names a machine path or a registry host")
                ok = False
    return ok


def check_links(_fix: bool, files: list[Path]) -> bool:
    """Every relative link in a Markdown file points to an existing file."""
    ok = True
    for path in files:
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                print(f"{path.relative_to(ROOT)}: broken link {target}")
                ok = False
    return ok


def check_one_definition(_fix: bool, files: list[Path]) -> bool:
    """No class or inline function is defined in two C++ files."""
    ok = True
    for name, paths in one_definition.violations(p for p in files if p.suffix in CPP_SUFFIXES):
        places = " and ".join(str(path.relative_to(ROOT)) for path in paths)
        print(f"{name} is defined in {places}: to the linker they are one; give one another name")
        ok = False
    return ok


def check_import_circles(_fix: bool, _: list[Path]) -> bool:
    """No import cycles among modules or top-level folders, imports in functions included."""
    tree = ROOT / "python" / "onnxruntime_npu", (ROOT / "contrib_ops", ROOT / "converters")
    found = import_circles.circles(*tree) + import_circles.room_circles(*tree)
    for circle in found:
        print("modules or rooms import each other in a circle:")
        for name, imports in circle.items():
            print(f"  {name} imports {', '.join(imports)}")
    return not found


def check_loops(_fix: bool, files: list[Path]) -> bool:
    """No launch and no parallel loop outside the kernel library."""
    lines = list(loops_outside_kernels.found(ROOT, files))
    print("".join(f"{line}\n" for line in lines), end="")
    return not lines


def check_test_names(_fix: bool, files: list[Path]) -> bool:
    """No two test files share a name, because pytest imports them by name."""
    places: dict[str, list[Path]] = {}
    for path in files:
        if path.name.startswith("test_") and path.suffix == ".py":
            places.setdefault(path.name, []).append(path.relative_to(ROOT))
    shared = [paths for paths in places.values() if len(paths) > 1]
    for paths in shared:
        print(f"{' and '.join(map(str, paths))}: pytest takes one name once; rename one of them")
    return not shared


CHECKS = {
    "ruff format": check_ruff_format,
    "ruff lint": check_ruff_lint,
    "clang-format": check_clang_format,
    "mypy": check_types,
    "machine names": check_machine_names,
    "links": check_links,
    "one definition": check_one_definition,
    "import circles": check_import_circles,
    "loops outside kernels": check_loops,
    "test names": check_test_names,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fix", action="store_true", help="rewrite what can be rewritten")
    args = parser.parse_args()
    files = tracked_files()
    failed = [name for name, check in CHECKS.items() if not check(args.fix, files)]
    print(
        f"failed: {', '.join(failed)} (`make format` mends format)"
        if failed
        else "all checks passed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
