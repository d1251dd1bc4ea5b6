"""Makes every backend call fail in turn while a scenario runs.

A separate process runs the scenario, since ORT_NPU_FAULT_INJECTION is read at the start. A
scenario is a function of no arguments that prepares what it needs and returns another one, which
does the work and checks the result with `assert`.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

# An allocation is retried after memory was freed, so it fails only after consecutive failures.
TIMES = {"AllocDevice": 4, "AllocPinned": 4}
# Failures that may go unreported: events and waits of frees and destructors.
HELPERS = {"AllocDevice", "CreateEvent", "EventRecord", "EventSynchronize", "StreamSynchronize"}

Scenario = Callable[[], Callable[[], Any]]


def in_a_process(file: str, *scenarios: str) -> None:
    """Run `file`, which calls main(), on some of its scenarios; fail with its output."""
    here = Path(__file__).parent
    path = [str(here), str(Path(file).parent), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, file, *scenarios],
        env={**os.environ, "ORT_NPU_FAULT_INJECTION": "1", "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr[-6000:]}"
    assert done.stdout.count("failed in turn") == len(scenarios), done.stdout


def main(scenarios: dict[str, Scenario]) -> None:
    """Make every backend call fail in the scenarios named on the command line, one by one."""
    faulthandler.dump_traceback_later(800, exit=True)  # a hang prints its location
    for name in sys.argv[1:]:
        print(f"{name}: ", end="", flush=True)
        work = scenarios[name]()
        gc.collect()
        gc.freeze()  # a collection follows each failure, and need not look at what was imported
        print(f"{fail_each_call(work)} calls failed in turn", flush=True)


def sampled(count: int) -> list[int]:
    """Return which of the calls to fail: the first ones, some of the rest, and the last."""
    return sorted({*range(1, min(count, 20) + 1), *range(27, count, 7), count})


def fail_each_call(work: Callable[[], Any], unnoticed: Collection[str] = frozenset(HELPERS)) -> int:
    """Let each call fail; return how many did.

    Each failure raises an exception, unless `unnoticed` has the call; then the work is repeated
    without a failure, and memory and streams are as before.
    """
    from onnxruntime_npu import _C

    for _ in range(2):  # one-time initialisation is done
        work()
    before, made = _C.backend_calls(), _settled()
    work()
    calls = {call: n - before.get(call, 0) for call, n in _C.backend_calls().items()}
    assert _settled() == made, "the work keeps something without any failure"
    total = 0
    for call, count in calls.items():
        for nth in sampled(count) if count else ():
            label = f"{call} {nth} of {count}"
            failed, told = _fail(work, call, nth)
            if told is not None:
                assert failed, f"{label} did not fail, but {told}"
                assert re.search("injected failure|memory|Allocation failed", told), (
                    f"{label}: {told}"
                )
            elif failed:
                assert call in unnoticed, f"nobody was told that {label} failed"
            total += failed > 0
            try:
                _settled()
                work()
            except Exception as error:
                raise AssertionError(f"after {label} failed ({told}): {error}") from error
            left = _settled(made)
            assert left == made, f"{label} failed ({told}) and left {left}, expected {made}"
    return total


def _fail(work: Callable[[], Any], call: str, nth: int) -> tuple[int, str | None]:
    """Return how many calls failed, and the message of the work's exception."""
    from onnxruntime_npu import _C

    _C.arm_fault(call, nth, TIMES.get(call, 1))
    told = None
    try:
        work()
    except AssertionError as error:
        raise AssertionError(f"a wrong result when {call} {nth} failed: {error}") from error
    except Exception as error:
        told = _chain(error)
    gc.collect()  # late destructors run under the failure, too
    return _C.disarm_fault(), told


def _chain(error: BaseException | None) -> str:
    """Return its message and those of its causes: leaving a `with` may raise another error."""
    lines = []
    while error is not None:
        lines.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(lines)


def _settled(expected: dict[str, int] | None = None) -> dict[str, int]:
    """Wait for all work, and return what is held once it is stable or as `expected`."""
    from onnxruntime_npu import _C

    gc.collect()
    try:
        _C.synchronize(0)
    except _C_error():
        pass  # it reports work that failed after the reported failure
    held: dict[str, int] = {}
    for _ in range(500):  # streams are destroyed on a thread of their own
        _C.empty_cache(0)
        now = {kind: _C.backend_objects().get(kind, 0) for kind in ("streams", "pinned")}
        stats = _C.memory_stats_as_nested_dict(0)
        now["allocated"] = stats["allocated_bytes"]["all"]["current"]
        now["reserved"] = stats["reserved_bytes"]["all"]["current"]
        if now == (held if expected is None else expected):
            return now
        held = now
        time.sleep(0.01)
    return held


def _C_error() -> type[Exception]:
    from onnxruntime_npu.errors import DeviceError

    return DeviceError
