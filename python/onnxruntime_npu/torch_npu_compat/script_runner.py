"""Runs unmodified scripts for torch_npu or CUDA as ``python`` would."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence

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
        ArgumentError: there is no such file.
        SystemExit: raised by the script, or 1 after an exception, whose traceback is printed.
    """
    if not module and not os.path.exists(script):
        raise ArgumentError(f"run expected a script, got {script!r}, which does not exist")
    install_as_torch_npu()
    if cuda:
        from ..contrib import transfer_to_npu as transfer_to_npu
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(script)))
    try:
        if module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
