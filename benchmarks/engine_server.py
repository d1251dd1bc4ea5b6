"""The process behind harness.Engine: creates one object and executes calls of its methods.

    python engine_server.py SOCKET_FD

It needs only the standard library and the module of the object, so that a peer can run in a
separate environment.
"""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


def serve(connection: Connection) -> None:
    """Create the object of the first message, then execute calls until asked to end."""
    module, name, arguments, keywords = connection.recv()
    target: Any = None
    request: Any = ("__init__", ())
    while request is not None:
        method, method_arguments = request
        try:
            if target is None:
                target = getattr(importlib.import_module(module), name)(*arguments, **keywords)
                connection.send(("ok", None))
            else:
                connection.send(("ok", getattr(target, method)(*method_arguments)))
        except Exception:
            connection.send(("error", traceback.format_exc()))
            if target is None:
                return
        try:
            request = connection.recv()
        except EOFError:  # the client has exited
            return


def end_with_parent() -> None:
    """Have this process killed when its parent ends, which it would outlive if it were stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    serve(Connection(int(sys.argv[1])))
