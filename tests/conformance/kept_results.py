"""Outcomes of files of the suites, kept in a file: runs of some folders together make a whole."""

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

    def __init__(self, path: Path, found):
        self._path = path
        self._found = {_key(*where): where[1] for where in found}
        self._runs = {}
        self._rows = {}  # judged
        for row in json.loads(path.read_text()) if path.exists() else []:
            key = row["suite"], row["file"]
            if key in self._found:
                run = self._runs.setdefault(key, FileRun(key[0], self._found[key]))
                run.date = row["date"]
                run.tests[row["test"]] = Outcome(row["outcome"], row["reason"], row["seconds"])

    def take(self, run):
        """Replaces what is known of a file, and writes all results."""
        key = _key(run.suite, run.path)
        self._runs[key] = run
        self._rows.pop(key, None)
        self._path.write_text(json.dumps([asdict(row) for row in self.rows()], indent=1))

    def rows(self, chosen=None):
        """The judged tests of all files with results, or of those of them that are chosen."""
        keys = self._found if chosen is None else [_key(*where) for where in chosen]
        for key in keys:
            if key in self._runs and key not in self._rows:
                self._rows[key] = conformance_report.judge([self._runs[key]])
        return [row for key in keys for row in self._rows.get(key, [])]

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
        ran = Counter(suite for suite, _ in self._runs)
        return {suite: (ran[suite], count) for suite, count in whole.items()}
