"""Names defined in two files: violations of the one-definition rule that linkers merge silently.

The linker merges classes and inline functions of the same name in two files of one library: if the
definitions differ, code of one file silently runs with the layout of the other. Definitions in
unnamed namespaces are local to a file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

_COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_TOKEN = re.compile(r"([^{};]*)([{};])")
_NAMESPACE = re.compile(r"\s*(?:inline\s+)?namespace\b\s*([\w:]*)\s*$")
_CLASS = re.compile(
    r"(?:class|struct|union)\s+(?:alignas\([^)]*\)\s*|\[\[[^\]]*\]\]\s*)?([A-Za-z_][\w:]*\w|[A-Za-z_])"
)
_INLINE = re.compile(r"\b(?:inline|constexpr)\b.*?([A-Za-z_]\w*)\s*(\([^;{]*\))[^()]*$", re.DOTALL)


def definitions(text: str) -> Iterator[str]:
    """Yield the names of classes and signatures of inline functions that other files share."""
    text = _COMMENT.sub(lambda found: '""' if found[0][0] in "\"'" else " ", text)
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", "", text, flags=re.MULTILINE)
    scopes: list[
        str | None
    ] = []  # None: a class, a function or an unnamed namespace, whose contents are local
    for found in _TOKEN.finditer(text):
        head, end = found[1], found[2]
        if end == "}":
            if scopes:
                scopes.pop()
            continue
        if end == ";":
            continue
        if namespace := _NAMESPACE.match(head):
            scopes.append(namespace[1] or None)
            continue
        if None not in scopes:
            yield from _defined("::".join(filter(None, scopes)), head)
        scopes.append(None)


def _defined(scope: str, head: str) -> Iterator[str]:
    if "<>" in head.replace(" ", "") or re.search(r"\b(enum|using|extern)\b", head):
        return
    head = re.sub(r"template\s*<[^{]*?>\s*(?=class|struct|inline|constexpr|union)", "", head)
    head = re.sub(r"\s+", " ", head).strip()
    function = _INLINE.search(head)
    if function and not head.startswith(("class", "struct", "union")):
        yield f"{scope}::{function[1]}{function[2]}"
    elif (name := _CLASS.match(head)) and "(" not in head.split(":")[0]:
        yield (
            f"{scope}::{name[1]}"
            if "<" not in head.split(":")[0]
            else f"{scope}::{head.split(':')[0]}"
        )


def violations(files: Iterable[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Yield each name defined in more than one file, with these files."""
    places = defaultdict(list)
    for path in files:
        for name in sorted(set(definitions(path.read_text(errors="replace")))):
            places[name].append(path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield name, paths
