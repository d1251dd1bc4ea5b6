"""Processes that tests start by "spawn", forked from one that has torch loaded.

A test of ranks starts two to four, and loading torch takes each several seconds of a core: more
than most tests do.
"""

import functools
import os
import signal
import sys
import time
import traceback
from multiprocessing import (
    connection,
    context,
    forkserver,
    resource_sharer,
    resource_tracker,
    util,
)
from multiprocessing.popen_forkserver import Popen
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from socket import AF_UNIX, socket

# Of the process that a test's file is run by, which the server of its ranks is a copy of. Not
# onnxruntime_npu, whose device has threads, nor torch's test helpers: they ask for the device when
# they are imported.
LOADED = [
    "hypothesis",
    "numpy",
    "onnxruntime",
    "pytest",
    "setuptools",
    "torch",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
]
_CHILD = "CONFORMANCE_CHILD"  # see shim/sitecustomize.py
_SECONDS_TO_TAKE = 5


def replace_spawn(*, close=()):
    """Makes "spawn" in this process mean processes of a server that is forked from it now.

    It ends with this process and its ranks. ``close``: file descriptors that it must not hold.
    """
    server = forkserver.ForkServer()
    resource_tracker.ensure_running()
    address = connection.arbitrary_address("AF_UNIX")
    with socket(AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        ended, alive = os.pipe()
        process = os.fork()
        if not process:
            _serve(listener, ended, [alive, *close])
        os.close(ended)
    server._forkserver_address = address
    server._forkserver_alive_fd = alive
    server._forkserver_pid = process
    forkserver.connect_to_new_process = server.connect_to_new_process
    context._concrete_contexts["spawn"] = _Context()


def _serve(listener, ended, close):
    try:
        for number in close:
            os.close(number)
        forkserver.main(listener.detach(), ended, None)
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)  # without exit handlers of what is loaded


class _Rank(BaseProcess):
    _start_method = "spawn"

    @staticmethod
    def _Popen(process):
        return _Start(process)


class _Start(Popen):
    # Also of a process of multiprocessing.Process, where "spawn" is the default.
    def _launch(self, process_obj):
        super()._launch(_Sent(process_obj))


class _Sent:
    """A process with the environment, which has to be there before what it runs is unpickled."""

    def __init__(self, process):
        self._process = process
        self._name = process._name

    def __reduce__(self):
        return _received, (dict(os.environ), bytes(ForkingPickler.dumps(self._process)))


def _received(environment, process):
    os.environ.clear()
    os.environ.update(environment)
    if _CHILD in environment:
        import onnxruntime_npu

        onnxruntime_npu.torch_device.register()  # which an import of torch afterwards would do
    made = ForkingPickler.loads(process)
    made.run = functools.partial(_run, made.run)
    return made


def _run(run):
    try:
        run()
    finally:
        _wait_until_taken()


def _wait_until_taken():
    """Waits for who takes the tensors that this rank has put into queues: it gives their memory.

    Ranks that let other devices go end late enough for that; here they would end first, and an end
    removes the socket by which others ask for memory before anything else.
    """
    for ended in (Queue._finalize_close, Queue._finalize_join):  # of threads that share what is put
        for finalizer in list(util._finalizer_registry.values()):
            if finalizer._callback is ended:
                finalizer()
    end = time.monotonic() + _SECONDS_TO_TAKE
    while resource_sharer._resource_sharer._cache and time.monotonic() < end:
        time.sleep(0.02)
    resource_sharer.stop(timeout=1)  # when it has answered who asked last


class _Context(context.SpawnContext):
    Process = _Rank
