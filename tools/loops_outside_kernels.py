"""Launches and loops over elements outside the kernel library.

A loop in the bindings is compiled for one instruction-set level and not in the operator registry,
so sessions could not use it. Bindings call operators, or functions of ep/runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# A launch on a stream, a parallel loop, element access to a tensor's memory.
_PATTERNS = {
    "launches on a stream": re.compile(r"(?:\.|->)Launch\(|\bStreamOf\([^)]*\)\s*\.Launch\("),
    "runs a parallel loop": re.compile(r"\bParallelFor\("),
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def found(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each launch or loop in the C++ files of python/."""
    for path in files:
        place = path.relative_to(root)
        if place.parts[0] != "python" or path.suffix not in (".cc", ".h"):
            continue
        text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text())
        for what, pattern in _PATTERNS.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{place}:{line}: {what}: belongs into ep/kernels"
