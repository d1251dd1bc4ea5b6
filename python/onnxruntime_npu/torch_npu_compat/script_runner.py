"""Runs unmodified scripts for torch_npu or CUDA as ``python`` would."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

from ..errors import ArgumentError
from .torch_npu_alias import install_as_torch_npu


def run_script(
    script: str, arguments: Sequence[str] = (), *, module: bool = False, cuda: bool = False
) -> None:
    """Run a script in this process, where ``import torch_npu`` imports this package.

    Args:
        script: a file, or the name of a module.
        arguments: the script's arguments in ``sys.argv``.
        module: ``script`` is a module, as with ``python -m``.
        cuda: run the script's CUDA work on npu: see ``contrib.transfer_to_npu``.

    Raises:
        ArgumentError: there is no such file or module.
        SystemExit: raised by the script, or 1 after an exception, whose traceback is printed.
    """
    if not module and not os.path.exists(script):
        raise ArgumentError(f"run expected a script, got {script!r}, which does not exist")
    if not module and os.path.isdir(script) and not os.path.exists(f"{script}/__main__.py"):
        raise ArgumentError(f"run expected a script, got {script!r}, which has no __main__.py")
    install_as_torch_npu()
    if cuda:
        from ..contrib import transfer_to_npu as transfer_to_npu
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(script)))
    if module and not _is_found(script):
        raise ArgumentError(f"run -m expected a module, got {script!r}, which is not found")
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except Exception as error:
        traceback.print_exception(error.with_traceback(_from_script(error.__traceback__)))
        raise SystemExit(1) from None


def _from_script(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without what ran the script, which python does not show either."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return frames


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        # A parent package that exists but misses a requirement fails in runpy, with a traceback.
        return not f"{module}.".startswith(f"{error.name}.")
    except (ImportError, ValueError):  # a parent package that fails, or has no specification
        return True
