"""Outcomes of files of the suites, kept in a file: runs of some folders together make a whole.

Of files that no kept run has, a report of earlier runs tells how many tests had which outcome.
"""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import conformance_report
from suites import FileRun, Outcome, name_in_suite


def _key(suite, path):
    return suite, name_in_suite(suite, path)


class KeptResults:
    """The runs of ``found``, (suite, file) in order; a JSON file has those of earlier runs."""

    def __init__(self, path: Path, found, *, added=(), report=""):
        """``added``: results of other runs, of files that ``path`` does not have."""
        self._path = path
        self._found = {_key(*where): where[1] for where in found}
        self._runs = {}
        self._rows = {}  # judged
        earlier = conformance_report.rows_of_report(report, {suite for suite, _ in self._found})
        self._earlier = {key: rows for key, rows in earlier.items() if key in self._found}
        for file in [*([path] if path.exists() else []), *added]:
            self._read(file)

    def _read(self, path):
        known = set(self._runs)
        for row in json.loads(path.read_text()):
            key = row["suite"], row["file"]
            if key in self._found and key not in known:
                run = self._runs.setdefault(key, FileRun(key[0], self._found[key]))
                run.date = row["date"]
                run.tests[row["test"]] = Outcome(row["outcome"], row["reason"], row["seconds"])

    def take(self, run):
        """Replaces what is known of a file, and writes all results."""
        key = _key(run.suite, run.path)
        self._runs[key] = run
        self._rows.pop(key, None)
        rows = [asdict(row) for row in self.rows() if (row.suite, row.file) in self._runs]
        self._path.write_text(json.dumps(rows, indent=1))

    def rows(self, chosen=None):
        """The judged tests of all files with results, or of those of them that are chosen.

        Of files that only the report has, the tests that count and fail have names.
        """
        keys = self._found if chosen is None else [_key(*where) for where in chosen]
        for key in keys:
            if key in self._runs and key not in self._rows:
                self._rows[key] = conformance_report.judge([self._runs[key]])
        known = self._earlier | self._rows
        return [row for key in keys for row in known.get(key, [])]

    def without(self, chosen):
        """Those of the chosen files that have no results."""
        return [where for where in chosen if _key(*where) not in self._runs]

    def failed(self, chosen):
        """Those of the chosen files of which a test that counts failed."""
        failing = {
            (row.suite, row.file)
            for row in conformance_report.counted(self.rows(chosen))
            if row.outcome == "failed"
        }
        return [where for where in chosen if _key(*where) in failing]

    def files(self):
        """How many files each suite has, and of how many there are results."""
        whole = Counter(suite for suite, _ in self._found)
        ran = Counter(suite for suite, _ in self._runs.keys() | self._earlier.keys())
        return {suite: (ran[suite], count) for suite, count in whole.items()}
