"""Finds the suites in a checkout and runs their files, in processes with time limits."""

import contextlib
import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

import worker

# Folders below a checkout's ``test``, and files next to them that test the device itself.
FOLDERS = ("test_custom_ops", "test_base_ops", "npu", "custom_ops", "allocator", "distributed")
FILES = "test_npu*.py"
# Logical devices by the folder's name, else two: most tests of ranks need four.
_DEVICES = {"distributed": 4}
_SECONDS_TO_END = 10


@dataclass
class Limits:
    """Time limits in seconds, of a test and of all tests of a file."""

    test: float = 60
    file: float = 600


@dataclass
class Outcome:
    """Outcome of a test: passed, failed or skipped, and why."""

    outcome: str
    reason: str = ""
    seconds: float = 0


@dataclass
class FileRun:
    """One file of a suite: its tests with their outcomes, in order."""

    suite: str
    path: Path
    tests: dict[str, Outcome] = field(default_factory=dict)
    broken: str = ""  # why no test of it could be collected
    date: str = ""  # when it ran


def name_in_suite(suite, path):
    """The path of a file below its suite's folder: folders have files of the same name."""
    below = path.as_posix().rpartition(f"/{suite.partition('/')[2]}/")
    return below[2] if below[1] else path.name


def find_files(roots):
    """(suite, file) of every test file below checkouts, or below folders that hold checkouts."""
    found = {}
    for root in map(Path, roots):
        for test in sorted({root / "test", *root.glob("*/test")}):
            for folder in FOLDERS:
                for file in sorted((test / folder).rglob("test_*.py")):
                    if file.is_file():
                        found[file.resolve()] = f"{test.parent.name}/test/{folder}"
            for file in sorted(test.glob(FILES)):
                found[file.resolve()] = f"{test.parent.name}/test"
    return [(suite, file) for file, suite in found.items()]


def devices_of(suite):
    """The environment of a suite: its logical devices, which take half of the memory together."""
    count = _DEVICES.get(suite.rpartition("/")[2], 2)
    have = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of a container
        with contextlib.suppress(OSError, ValueError):
            have.append(int(Path("/sys/fs/cgroup", limit).read_text()))
    memory = min(have) // 2 // count
    return {"ORT_NPU_DEVICE_COUNT": str(count), "ORT_NPU_MEMORY_LIMIT": str(memory)}


class _Clock:
    """Seconds in which this process ran, without the time for which it was stopped."""

    STEP = 1.0  # the longest permitted time between two readings

    def __init__(self):
        self._read, self._seconds = time.monotonic(), 0.0

    def __call__(self):
        now = time.monotonic()
        self._seconds += min(now - self._read, 2 * self.STEP)
        self._read = now
        return self._seconds


class Runner:
    """Runs files, each in a process forked from one with torch loaded."""

    def __init__(self, logs: Path, limits: Limits):
        self._logs = logs
        self._limits = limits
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["worker"])
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, suite, path):
        """Runs a file; a test that ends its process or hangs fails, the rest runs anew."""
        run = FileRun(suite, path)
        name = f"{suite}/{name_in_suite(suite, path)}".removesuffix(".py")
        log = self._logs / f"{name.replace('/', '.')}.log"
        log.unlink(missing_ok=True)
        clock = _Clock()
        while self._run_rest(run, log, clock):
            pass
        return run

    def _run_rest(self, run, log, clock):
        """Runs the tests without an outcome in one process; True if another has to continue."""
        report, theirs = self._context.Pipe(duplex=False)
        done = list(run.tests)
        environment = devices_of(run.suite)
        arguments = (str(run.path), done, str(log), theirs, environment)
        process = self._context.Process(target=worker.run_file, args=arguments)
        process.start()
        theirs.close()
        state = _State(run, set(done), clock)
        ended = late = False
        for line in _lines(report, clock, lambda: self._deadline(state)):
            late = line is None
            ended = not late and state.take(json.loads(line))
            if late or ended:
                break
        if not late:
            process.join(_SECONDS_TO_END)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including processes that it started
        process.join()
        if ended or state.finish_fixtures():
            return False
        return state.end_early(late, process.exitcode, self._limits.file)

    def _deadline(self, state):
        return min(self._limits.file, state.started + self._limits.test)


class _State:
    """The state that one process's reports describe."""

    def __init__(self, run, done, clock):
        self._run, self._done, self._clock = run, done, clock
        self._collected = []
        self._running = None
        self._fixtures = []
        self.started = clock()

    def take(self, event):
        """Notes one report; True for the last."""
        kind = event["event"]
        self.started = self._clock()
        if kind == "collected":
            self._collected = event["tests"]
        elif kind == "start":
            self._running = event["test"]
        elif kind == "result":
            self._running = None
            outcome = Outcome(event["outcome"], event["reason"], event["s"])
            self._run.tests[event["test"]] = outcome
        elif kind == "fixture":
            self._fixtures.append(event)
        elif kind == "broken":
            self._run.broken = event["reason"]
            return True
        elif kind == "end":
            self._close()
            return True
        return False

    def _close(self):
        """Gives tests that did not run the outcome of their class's fixture."""
        for test in self._collected:
            if test not in self._run.tests:
                of = f".{test.partition('.')[0]})"
                fixture = next((f for f in self._fixtures if f["of"].endswith(of)), None)
                fixture = fixture or {"outcome": "failed", "reason": "did not run"}
                self._run.tests[test] = Outcome(fixture["outcome"], fixture["reason"])

    def finish_fixtures(self):
        """True when the process ended without a report although all tests have an outcome."""
        return bool(self._collected) and all(t in self._run.tests for t in self._collected)

    def end_early(self, late, exit_code, until):
        """Fails the test that was running; True if others remain."""
        if late:
            seconds = self._clock() - self.started
            reason = f"hangs: stopped after {seconds:.0f} s"
        else:
            name = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
            reason = f"ends its process: {name}"
        if self._running is None:
            self._run.broken = self._run.broken or reason
            return False
        self._run.tests[self._running] = Outcome("failed", reason)
        rest = [test for test in self._collected if test not in self._run.tests]
        if self._clock() < until:
            return bool(rest)
        for test in rest:
            self._run.tests[test] = Outcome("failed", "not reached within the file's time limit")
        return False


def _lines(report, clock, deadline):
    """Yields lines until the deadline, which every line may move; None when it has passed."""
    pending = b""
    while True:
        left = max(deadline() - clock(), 0)
        if not wait([report], min(left, _Clock.STEP)):
            if left > 0:
                continue
            yield None
            return
        data = os.read(report.fileno(), 65536)
        if not data:
            return
        *lines, pending = (pending + data).split(b"\n")
        yield from lines
