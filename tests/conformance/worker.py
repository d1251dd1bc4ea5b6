"""Runs the tests of one file in this process and reports each as it starts and ends.

The parent (suites.py) forks this process from one that has torch loaded and reads the reports.
What a test prints goes to a log file.
"""

import contextlib
import faulthandler
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import traceback
import unittest
from pathlib import Path

from rank_processes import LOADED, replace_spawn

HERE = Path(__file__).resolve().parent

# Loaded before the fork, once for all files and ranks.
for _module in (*LOADED, "torch.testing", "scipy.stats"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)


def run_file(path, done, log, report, environment):
    """Runs the tests of ``path`` not in ``done``; ``report`` takes one JSON object a line.

    What the caller of the runner has set goes before ``environment``.
    """
    os.environ |= environment | os.environ
    with open(log, "a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.setsid()  # so that the parent can end all processes of the tests
    faulthandler.enable()
    stream = os.fdopen(os.dup(report.fileno()), "w", buffering=1)

    def say(**event):
        stream.write(json.dumps(event) + "\n")

    try:
        replace_spawn(close=[report.fileno(), stream.fileno()])
        _become_a_script(Path(path))
        suite = _collect(Path(path))
        tests = [test for test in _flatten(suite)]
        say(event="collected", tests=[_name(test) for test in tests])
        rest = unittest.TestSuite(test for test in tests if _name(test) not in done)
        rest.run(_Reporter(say))
        say(event="end")
    except BaseException as error:
        say(event="broken", reason=_reason(error))
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    stream.close()
    os._exit(0)  # without a suite's threads and exit handlers


def _become_a_script(path):
    """The folder, path and arguments that ``python test_file.py`` would have."""
    sys.path[:0] = [str(path.parent), str(HERE / "shim"), str(HERE)]
    sys.argv = [str(path)]
    os.environ["CONFORMANCE_CHILD"] = "1"  # see shim/sitecustomize.py
    os.chdir(path.parent)
    multiprocessing.set_start_method(None, force=True)  # which is the runner's here
    import torch_npu_testing

    torch_npu_testing.install()


def _collect(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def _flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flatten(test)
        else:
            yield test


def _name(test):
    return f"{type(test).__name__}.{test._testMethodName}"


def _reason(error):
    """The error in one line: its type and the first line that is not empty.

    Of ranks, which are told with tracebacks: the error that ends the first one.
    """
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if line.startswith("Traceback")), len(lines))
    ended = next((line for line in lines[first + 1 :] if not line[0].isspace()), None)
    lines = [ended or line.strip() for line in lines[:1]]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    return text if len(text) <= 240 else text[:237] + "..."


class _Reporter(unittest.TestResult):
    """Reports the start and the outcome of each test."""

    def __init__(self, say):
        super().__init__()
        self._say = say

    def startTest(self, test):
        super().startTest(test)
        self._outcome = ("passed", "")
        self._started = time.monotonic()
        self._say(event="start", test=_name(test))

    def stopTest(self, test):
        super().stopTest(test)
        seconds = time.monotonic() - self._started
        outcome, reason = self._outcome
        self._say(event="result", test=_name(test), outcome=outcome, reason=reason, s=seconds)

    def addError(self, test, error):
        self._failed(test, error)

    def addFailure(self, test, error):
        self._failed(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self._failed(test, error)

    def addSkip(self, test, reason):
        if not isinstance(test, unittest.TestCase):
            self._say(event="fixture", of=str(test), outcome="skipped", reason=reason)
        self._outcome = ("skipped", str(reason) or "no reason given")

    def addExpectedFailure(self, test, error):
        self._outcome = ("passed", "")

    def addUnexpectedSuccess(self, test):
        self._outcome = ("failed", "passed, although marked as an expected failure")

    def _failed(self, test, error):
        traceback.print_exception(*error)
        if not isinstance(test, unittest.TestCase):  # setUpClass, setUpModule and similar
            self._say(event="fixture", of=str(test), outcome="failed", reason=_reason(error[1]))
        self._outcome = ("failed", _reason(error[1]))
