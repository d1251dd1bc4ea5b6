"""Launches and loops over elements outside the kernel library.

A loop in the bindings is compiled for one instruction-set level and not in the operator registry,
so sessions could not use it. Bindings call operators, or functions of ep/runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_NUMBER = r"(?:float|double|bool|u?int(?:8|16|32|64)?(?:_t)?|(?:at|c10)::\w+|T|scalar_t)"
_PATTERNS = {
    "launches on a stream": re.compile(r"(?:\.|->)Launch\(|\bStreamOf\([^)]*\)\s*\.Launch\("),
    "runs a parallel loop": re.compile(r"\b(?:ParallelFor|parallel_for|cpu_kernel\w*)\("),
}
# What a loop over elements starts with. The torch device passes addresses on without a type; the
# process group has headers of its own in host tensors.
_READS_ELEMENTS = re.compile(
    rf"\b(?:mutable_|const_)?data_ptr<|\baccessor<|_cast<(?:const )?{_NUMBER} ?\*>"
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def found(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each launch or loop in the C++ files of python/."""
    for path in files:
        place = path.relative_to(root)
        if place.parts[0] != "python" or path.suffix not in (".cc", ".h"):
            continue
        text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), path.read_text())
        patterns = dict(_PATTERNS)
        if place.parts[:3] == ("python", "csrc", "torch"):
            patterns["reads elements"] = _READS_ELEMENTS
        for what, pattern in patterns.items():
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{place}:{line}: {what}: belongs into ep/kernels"
