"""Files of an export appear under their final names only when all of them are whole."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..errors import ExportError
from ..uninterrupted import uninterrupted


@contextlib.contextmanager
def staged(out: Path, last: str) -> Iterator[Path]:
    """Give a temporary folder to write to; move its files into the folder ``out`` at the end.

    Files of the same names are replaced, others in ``out`` stay. ``last`` is removed first and
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
            out.mkdir(exist_ok=True)
            (out / last).unlink(missing_ok=True)
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
