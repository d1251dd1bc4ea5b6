"""``run``: scripts of torch_npu or CUDA on the NPU."""

from __future__ import annotations

import argparse

from .arguments import Commands


def add_command(commands: Commands) -> None:
    """Add the command to the parser."""
    run = commands.add_parser(
        "run",
        help="a script of torch_npu or CUDA, unmodified, on the NPU",
        description="Run a Python script whose `import torch_npu` finds this package.",
    )
    run.add_argument("--cuda", action="store_true", help="what it does on CUDA happens on npu")
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    run.add_argument("script", metavar="SCRIPT", help="file, or module with -m")
    run.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own")
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    from ..torch_npu_compat.script_runner import run_script

    run_script(arguments.script, arguments.arguments, module=arguments.module, cuda=arguments.cuda)
