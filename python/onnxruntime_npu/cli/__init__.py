"""The ``onnxruntime-npu`` command.

Exit codes: 0 success, 2 bad arguments, 1 any other failure; failures print one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from ..errors import ArgumentError, ExportError, ServingError, UnsupportedError
from . import (
    convert_commands,
    export_commands,
    generate_command,
    inspect_commands,
    run_command,
    serve_command,
)
from .arguments import Parser

PROGRAM = "onnxruntime-npu"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    arguments.argv = list(sys.argv[1:] if argv is None else argv)
    try:
        with _stopped_by_sigterm():
            code = arguments.run(arguments) or 0
        sys.stdout.flush()
    except ArgumentError as error:
        return _fail(2, error)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except _Terminated:
        return _fail(143, "terminated")
    except (
        ExportError,
        ServingError,
        UnsupportedError,
        ImportError,
        OSError,
        MemoryError,
    ) as error:
        return _fail(1, error)
    except Exception as error:
        # onnxruntime's exceptions have no common base class.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        return _fail(1, error)
    return code


class _Terminated(BaseException):
    """SIGTERM was received."""


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as an interruption does, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # others cannot handle signals
        return

    def stop(_number: int, _frame: object) -> None:
        raise _Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _fail(code: int, reason: object) -> int:
    text = " ".join(str(reason).split()) or type(reason).__name__
    print(f"{PROGRAM}: error: {text}", file=sys.stderr)
    return code


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Export, run and inspect models on the NPU.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    inspect_commands.add_commands(commands)
    export_commands.add_commands(commands)
    convert_commands.add_commands(commands)
    generate_command.add_command(commands)
    serve_command.add_command(commands)
    run_command.add_command(commands)
    return parser
