"""The end of a process in which torch's autograd threads have worked.

`backward()` returns as soon as the last gradient is there. The device's thread may then still hold
the graph, and be the last to do so. If the interpreter ends at that moment, the destructor of a
Python object in the graph waits for the interpreter's lock, which ends the thread within that
destructor: C++ calls `terminate`, and a process that has done all its work has the exit code -6.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from ..npu import device_count

THREADS = "pt_autograd_"  # torch's name of such a thread, before the index of its device


def wait(extension: ModuleType) -> None:
    """Wait until the autograd threads have released the graphs that they hold."""
    names = [_name(thread) for thread in Path("/proc/self/task").iterdir()]
    # None in a process that was forked.
    found = {int(name.removeprefix(THREADS)) for name in names if name.startswith(THREADS)}
    if found:  # also those of other kinds of devices
        extension.wait_for_unreleased_graphs(sorted(found & set(range(device_count()))))


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
