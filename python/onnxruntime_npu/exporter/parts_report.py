"""The report of an export of several files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .report import ExportReport


@dataclass
class PartsReport:
    """The report of each file; ``export_report.json`` holds the same."""

    parts: dict[str, ExportReport]  # by the name of the file

    @property
    def gaps(self) -> list[str]:
        """What was replaced and is not in a file; empty if all is."""
        return [f"{name}: {gap}" for name, report in self.parts.items() for gap in report.gaps]

    @property
    def kept(self) -> list[dict[str, str]]:
        """The parts of the model that were not replaced, and why."""
        return [entry for report in self.parts.values() for entry in report.kept]

    @property
    def warnings(self) -> list[str]:
        """What a user should know."""
        return [warning for report in self.parts.values() for warning in report.warnings]

    def write(self, path: Path) -> None:
        """Write the reports as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
