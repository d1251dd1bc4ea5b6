"""Files of an export appear under their final names only when all of them are whole."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import ExportError
from ..uninterrupted import uninterrupted

_REPORT = "export_report.json"
_WRITTEN = "written"  # of it: names of the files that the export wrote


@contextlib.contextmanager
def staged(out: Path, last: str) -> Iterator[Path]:
    """Give a temporary folder to write to; move its files into the folder ``out`` at the end.

    Files of the same names are replaced. If there is a report, it gets their names, and what an
    earlier export with a report wrote and this one does not is removed: a model is never read with
    another one's template or settings. Other files in ``out`` stay. ``last`` is removed first and
    moved last, so that it never stands beside files that it does not belong to. If the block
    raises, also by an interruption, ``out`` is as it was and the temporary folder is gone.

    Raises ExportError if the files cannot be written.
    """
    try:
        # On the same file system as the final names, so that a move cannot fail halfway.
        place = out if out.is_dir() else out.parent
        made = not place.exists()
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".", suffix=".partial", dir=place))
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror}") from error
    try:
        yield folder
        with uninterrupted():
            names = _named_in_report(folder)
            out.mkdir(exist_ok=True)
            (out / last).unlink(missing_ok=True)
            if names:
                _remove_earlier(out, names)
            for source in sorted(folder.iterdir(), key=lambda path: path.name == last):
                source.replace(out / source.name)
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):  # it holds what was written
                    place.rmdir()


@contextlib.contextmanager
def staged_ranks(out: Path, ranks: int, last: str) -> Iterator[list[Path]]:
    """Give a temporary folder for each rank; move their files into ``out/rank_0`` and so on.

    As ``staged``, whose ``last`` it takes. What an earlier export wrote to ``out`` for one process,
    or for more ranks, is removed after that.
    """
    places = [out / f"rank_{rank}" for rank in range(ranks)]
    with contextlib.ExitStack() as folders:
        yield [folders.enter_context(staged(place, last)) for place in places]
    with uninterrupted():
        _remove_written(out, set())
        for place in out.glob("rank_*"):
            if place not in places:
                _remove_rank(place)


def _named_in_report(folder: Path) -> set[str]:
    """Write the names of a folder's files to its report and return them; none without a report."""
    path = folder / _REPORT
    if not path.is_file():
        return set()
    names = {each.name for each in folder.iterdir()}
    report = json.loads(path.read_text(encoding="utf-8"))
    text = json.dumps({**report, _WRITTEN: sorted(names)}, indent=2)
    path.write_text(f"{text}\n", encoding="utf-8")
    return names


def _remove_earlier(out: Path, names: set[str]) -> None:
    """Remove what an earlier export wrote to a folder, or for its ranks, except what is new."""
    _remove_written(out, names)
    for place in out.glob("rank_*"):
        _remove_rank(place)


def _remove_rank(place: Path) -> None:
    """Remove what an earlier export wrote for a rank, and its folder if nothing else is in it."""
    _remove_written(place, set())
    with contextlib.suppress(OSError):  # it holds something else
        place.rmdir()


def _remove_written(place: Path, stays: set[str]) -> None:
    """Remove what the report of a folder names, except names that stay."""
    try:
        written = json.loads((place / _REPORT).read_text(encoding="utf-8")).get(_WRITTEN, [])
    except (OSError, ValueError, AttributeError):  # no report, or somebody else's
        return
    for name in written if isinstance(written, list) else ():
        if isinstance(name, str) and Path(name).name == name and name not in stays:
            (place / name).unlink(missing_ok=True)
