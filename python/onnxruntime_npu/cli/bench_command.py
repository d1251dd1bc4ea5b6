"""``bench``: one benchmark of the source tree by name."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from pathlib import Path

from ..errors import ArgumentError, UnsupportedError
from .arguments import Commands

_FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"
_SCRIPT = "#!"  # how files begin that are run by themselves; the others are what they share


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    bench = commands.add_parser(
        "bench",
        help="one benchmark against peers on this machine",
        usage="onnxruntime-npu bench [-h] [NAME [OPTION ...]]",
        description="Run a benchmark of the source tree; without a name, list them all. Tables and "
        "samples are written to build/bench. `make bench` runs all, and installs the peers first.",
    )
    bench.add_argument(
        "words",
        metavar="NAME [OPTION ...]",
        nargs=argparse.REMAINDER,
        help="the benchmark and its options, which `bench NAME --help` shows",
    )
    bench.set_defaults(run=_run, help=bench.print_help)


def _run(arguments: argparse.Namespace) -> None:
    name, *options = arguments.words or [None]
    if name in ("-h", "--help"):
        return arguments.help()
    scripts = _scripts()
    if name is None:
        width = max(map(len, scripts))
        for each, path in scripts.items():
            print(f"{each:{width}}  {_summary(path)}")
        return None
    if name not in scripts:
        raise ArgumentError(f"expected a benchmark of {', '.join(scripts)}, got {name!r}")
    # In the place of this process, so that it gets the signals that are meant for it.
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(scripts[name]), *options])


def _scripts() -> dict[str, Path]:
    """Return the benchmarks by name."""
    found = {path.stem: path for path in sorted(_FOLDER.glob("*.py")) if _is_script(path)}
    if not found:
        raise UnsupportedError(
            "the benchmarks are not installed with the package: run this command, or `make bench`, "
            "in a clone of the source tree"
        )
    return found


def _is_script(path: Path) -> bool:
    with path.open(encoding="utf-8") as file:
        return file.read(len(_SCRIPT)) == _SCRIPT


def _summary(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
