"""Reports of a run: the table for the terminal, the report of every file, docs/conformance.md."""

import collections
import re
from dataclasses import dataclass, replace
from itertools import groupby

from eligibility import Names, TestFile
from explanations import explanation
from suites import Outcome, name_in_suite

BAR = 0.9


@dataclass
class Row:
    """One test: its outcome, and why it does not count, if so."""

    suite: str
    file: str
    test: str
    outcome: str
    reason: str
    not_counted: str
    seconds: float = 0
    date: str = ""


def judge(runs, names=None):
    """Rows of all tests of the runs; a file that cannot be imported fails with all its tests."""
    names = names or Names.of_this_build()
    rows = []
    for run in runs:
        source = TestFile(run.path, names)
        where = (run.suite, name_in_suite(run.suite, run.path))
        if run.broken and not run.tests:
            for test, why_not in source.tests.items():
                reason = f"import: {run.broken}"
                rows.append(Row(*where, test, "failed", reason, why_not, date=run.date))
        for test, o in run.tests.items():
            why_not = source.why_not(test)
            seconds = round(o.seconds, 2)
            rows.append(Row(*where, test, o.outcome, o.reason, why_not, seconds, run.date))
    return rows


def not_counted(files, names=None):
    """Tests by (suite, file) of files without a counted test, marked as skipped."""
    names = names or Names.of_this_build()
    sources = {(suite, name_in_suite(suite, path)): TestFile(path, names) for suite, path in files}
    return {
        file: {test: Outcome("skipped", "not run: does not count") for test in source.tests}
        for file, source in sources.items()
        if source.tests and all(source.tests.values())
    }


def counts(rows):
    """Passed, failed and skipped among rows."""
    tally = collections.Counter(row.outcome for row in rows)
    return tally["passed"], tally["failed"], tally["skipped"]


def counted(rows):
    """Rows of tests that count and were not skipped."""
    return [row for row in rows if not row.not_counted and row.outcome != "skipped"]


def bar_is_met(rows):
    """Whether nine of ten of the tests that count pass."""
    passed, failed, _ = counts(counted(rows))
    return passed + failed > 0 and passed >= BAR * (passed + failed)


def _verdict(rows):
    passed, failed, _ = counts(counted(rows))
    share = 100 * passed / max(passed + failed, 1)
    met = "met" if bar_is_met(rows) else "not met"
    return f"{passed} of {passed + failed} ({share:.1f} %); the bar of {BAR:.0%} is {met}"


def text(rows):
    """The table for the terminal."""
    lines = [f"{'passed':>7}{'failed':>8}{'skipped':>9}{'count':>7}  file"]
    for (suite, file), group in _by_file(rows):
        passed, failed, skipped = counts(group)
        count = len(counted(group))
        lines.append(f"{passed:7}{failed:8}{skipped:9}{count:7}  {suite}/{file}")
        for row in group:
            if row.outcome != "passed":
                beside = f" [not counted: {row.not_counted}]" if row.not_counted else ""
                lines.append(f"{'':33}{row.outcome}: {row.test}: {row.reason}{beside}")
    passed, failed, skipped = counts(rows)
    lines += ["", f"all: {passed} passed, {failed} failed, {skipped} skipped"]
    lines.append(f"of those that use only what is built, passed: {_verdict(rows)}")
    return "\n".join(lines)


def summary(rows, files):
    """The text of docs/conformance.md. files: of each suite, how many have results, and all."""
    from onnxruntime_npu.npu.api_table import ROWS
    from onnxruntime_npu.ops import torch_names

    dates = sorted({row.date for row in rows})
    head = _HEAD.format(
        verdict=_verdict(rows),
        operators=len(torch_names()),
        rows=len(ROWS),
        dates=" to ".join(dict.fromkeys((dates[0], dates[-1]))),
        ran=_ran(files),
    )
    failing = [row for row in counted(rows) if row.outcome == "failed"]
    reasons = collections.Counter(
        explanation(f"{row.file} {row.test}", row.reason) for row in failing
    )
    parts = [
        head,
        *_suite_table(rows, files),
        "",
        "| tests that count and fail | why |",
        "|---|---|",
    ]
    shown = _by_number(reasons)[:_REASONS_SHOWN]
    parts += [f"| {n} | {reason} |" for reason, n in shown]
    rest = len(failing) - sum(n for _, n in shown)
    parts += [f"| {rest} | other reasons, test by test in the report |"] if rest else []
    return "\n".join(parts) + "\n"


def _ran(files):
    ran, whole = (sum(counts) for counts in zip(*files.values(), strict=True))
    if ran == whole:
        return f"There are results of all {whole} files."
    return (
        f"There are results of {ran} of {whole} files (a file without a test that counts is not "
        "run); those of the others are not known for this version."
    )


def _suite_table(rows, files):
    parts = [
        "| suite | files | with results | passed | failed | skipped | counted | of these passed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for suite, (ran, whole) in files.items():
        if ran:
            parts.append(
                _suite_line(suite, [row for row in rows if row.suite == suite], ran, whole)
            )
        else:
            parts.append(f"| {suite} | {whole} | 0 | - | - | - | - | - |")
    whole = [sum(counts) for counts in zip(*files.values(), strict=True)]
    return [*parts, _suite_line("all", rows, *whole)]


def report(rows, files):
    """Every test that counts and fails, every reason, every file."""
    parts = ["# Conformance: every file", "", *_suite_table(rows, files)]
    parts += ["", "## Tests that count and fail", "", "| test | why | error |", "|---|---|---|"]
    parts += [
        f"| `{row.suite}/{row.file}` `{row.test}` | "
        f"{explanation(f'{row.file} {row.test}', row.reason)} | {_cell(row.reason)} |"
        for row in counted(rows)
        if row.outcome == "failed"
    ]
    parts += ["", "## Why tests do not count", "", "| tests | reason |", "|---|---|"]
    reasons = collections.Counter(_cell(row.not_counted) for row in rows if row.not_counted)
    parts += [f"| {n} | {reason} |" for reason, n in _by_number(reasons)]
    parts += ["", "## Why tests are skipped", "", "| tests | reason |", "|---|---|"]
    reasons = collections.Counter(
        _cell(row.reason) for row in rows if row.outcome == "skipped" and not row.not_counted
    )
    parts += [f"| {n} | {reason} |" for reason, n in _by_number(reasons)]
    parts += ["", "## Files", "", "| file | passed | failed | skipped | counted | date |"]
    parts.append("|---|---|---|---|---|---|")
    for (suite, file), group in _by_file(rows):
        passed, failed, skipped = counts(group)
        count = len(counted(group))
        numbers = f"{passed} | {failed} | {skipped} | {count}"
        parts.append(f"| `{suite}/{file}` | {numbers} | {group[0].date} |")
    return "\n".join(parts) + "\n"


def rows_of_report(text, suites):
    """Rows by (suite, file) of what a report has; names only of tests that count and fail."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        cells = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
        name, _, test = cells[0].strip("`").partition("` `")
        suite = max((s for s in suites if name.startswith(f"{s}/")), key=len, default=None)
        if suite is None:
            continue
        where = suite, name.removeprefix(f"{suite}/")
        if test:
            reason = cells[2].replace("\\|", "|").replace("&lt;", "<")
            found.setdefault(where, []).append(Row(*where, test, "failed", reason, ""))
            continue
        rows = found.setdefault(where, [])
        passed, failed, skipped, count = map(int, cells[1:5])
        good, bad = count - len(rows), len(rows)
        rows += [Row(*where, "", "passed", "", "")] * good
        rows += [Row(*where, "", "passed", "", _EARLIER)] * (passed - good)
        rows += [Row(*where, "", "failed", "", _EARLIER)] * (failed - bad)
        rows += [Row(*where, "", "skipped", "", _EARLIER)] * skipped
        found[where] = [replace(row, date=cells[5]) for row in rows]
    return found


def _by_file(rows):
    for key, group in groupby(rows, lambda row: (row.suite, row.file)):
        yield key, list(group)


def _by_number(counter):
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))


def _suite_line(suite, rows, ran, whole):
    passed, failed, skipped = counts(rows)
    good, bad, _ = counts(counted(rows))
    return (
        f"| {suite} | {whole} | {ran} | {passed} | {failed} | {skipped} | {good + bad} | {good} |"
    )


def _cell(reason):
    """A reason as a table cell: without bars, addresses and machine-specific paths."""
    reason = re.sub(r"0x[0-9a-f]{6,}", "0x…", reason)
    reason = re.sub(r"(?:/[\w.+-]+){2,}/", "…/", reason)
    return reason.replace("|", "\\|").replace("<", "&lt;")


_REASONS_SHOWN = 15
_EARLIER = "of an earlier run, whose reasons are not kept"

_HEAD = """# Conformance

Written by `make conformance PATH=…` with `--write-docs` (`tests/conformance/run.py`); [the
report](../tests/conformance/report.md) lists every file and every failing test. The public suites
of op-plugin (`test/test_custom_ops`, `test/test_base_ops`) and of the pytorch adapter (`test/npu`,
`test/custom_ops`, `test/allocator`, `test/distributed`, `test/test_npu*.py`) run unmodified, with
`onnxruntime_npu.install_as_torch_npu()` and two logical devices, four for `test/distributed`, which
together have half of the machine's memory. The suites are not part of this repository; the helpers
that they import as `torch_npu.testing` are in `tests/conformance/torch_npu_testing/`.

A test counts if it uses only implemented functions and plain torch. The rule is mechanical
(`tests/conformance/eligibility.py`): every name of `torch_npu`, `torch.npu`, `torch.ops.npu` in the
test's source and in the definitions that it uses in its file must be one of the {operators}
operators or begin with one of the {rows} rows of the device API; CUDA, inductor,
torchair, C++ extensions and modules that are not installed do not count. Skipped tests do not count
either: `SupportedDevices` skips tests for products other than `Ascend910B`, which the run sets by
`ORT_NPU_DEVICE_NAME`. Tests of events between processes count and pass as on an Ascend driver
without such events: `Event(interprocess=True)` is refused. An event orders work on memory, and
memory of the host NPU belongs to one process, so an event between processes has nothing to order.

Run on {dates}. {ran}

**Of the tests that count, passed: {verdict}.**
"""
