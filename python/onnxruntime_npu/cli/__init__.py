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
from ..extras import missing_package, told_extra
from ..version import __version__
from . import (
    bench_command,
    convert_commands,
    export_commands,
    generate_command,
    inspect_commands,
    run_command,
    serve_command,
)
from .arguments import Parser

PROGRAM = "onnxruntime-npu"
_AGAIN = 0.05  # seconds
_SIGNALS: dict[int, str] = {
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "its terminal was closed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    arguments.argv = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        with _stopped_by_signals():
            code = arguments.run(arguments) or 0
        if sys.stdout is not None:  # as of a service that was started with it closed
            sys.stdout.flush()
    except ArgumentError as error:
        return _fail(2, error)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return _fail(130, "interrupted")
    except _Stopped as stop:
        return _fail(128 + stop.number, _SIGNALS[stop.number])
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None or "pip install" in str(error):
            return _fail(1, error)
        return _fail(1, told_extra("this command", error, "export"))
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


class _Stopped(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let signals end a command as an interruption does, so that temporary files are removed.

    Those that are ignored stay so, as SIGHUP under nohup.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # others cannot handle signals
        return

    def stop(number: int, _frame: object) -> None:
        raise _Stopped(number)

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        """Send the signal again that came while Python lets no exception out, as in a destructor.

        Later, since it does not let one out here either.
        """
        stopped = found.exc_value
        if isinstance(stopped, (_Stopped, KeyboardInterrupt)):
            number = stopped.number if isinstance(stopped, _Stopped) else signal.SIGINT
            again = threading.Timer(_AGAIN, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            hook(found)

    heard = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heard}
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


def _fail(code: int, reason: object) -> int:
    text = " ".join(str(reason).split()) or type(reason).__name__
    if sys.stderr is not None:  # else the standard output would have it
        print(f"{PROGRAM}: error: {text}", file=sys.stderr)
    return code


def _parser() -> Parser:
    parser = Parser(prog=PROGRAM, description="Export, run and inspect models on the NPU.")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    inspect_commands.add_commands(commands)
    export_commands.add_commands(commands)
    convert_commands.add_commands(commands)
    generate_command.add_command(commands)
    serve_command.add_command(commands)
    run_command.add_command(commands)
    bench_command.add_command(commands)
    return parser
