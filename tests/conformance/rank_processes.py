"""Processes that tests start by "spawn", forked from one that has torch loaded.

A test of ranks starts two to four, and loading torch takes each several seconds of a core: more
than most tests do.
"""

import contextlib
import os
from multiprocessing import context, forkserver
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler

# Not onnxruntime_npu, whose device has threads, nor torch's test helpers: they ask for the device
# when they are imported.
LOADED = [
    "hypothesis",
    "numpy",
    "onnxruntime",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
]
_CHILD = "CONFORMANCE_CHILD"  # see shim/sitecustomize.py


def replace_spawn():
    """Makes "spawn" in this process mean processes of a server that it starts with the first."""
    server = forkserver.ForkServer()  # of this process, so that it ends with it
    server.set_forkserver_preload(LOADED)

    def connect(fds):
        with _without(_CHILD):
            server.ensure_running()
        return server.connect_to_new_process(fds)

    forkserver.connect_to_new_process = connect
    context._concrete_contexts["spawn"] = _Context()


class _Rank(BaseProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process):
        return Popen(process)

    def __reduce__(self):
        # What is unpickled imports the test's file, for which the environment has to be there.
        return _restored, (dict(os.environ), bytes(ForkingPickler.dumps(vars(self))))


def _restored(environment, state):
    os.environ.clear()
    os.environ.update(environment)
    if _CHILD in environment:
        import onnxruntime_npu  # noqa: F401
    rank = _Rank.__new__(_Rank)
    vars(rank).update(ForkingPickler.loads(state))
    return rank


class _Context(context.SpawnContext):
    Process = _Rank


@contextlib.contextmanager
def _without(variable):
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value
