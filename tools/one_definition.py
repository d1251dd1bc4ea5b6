"""Names defined in two files: violations of the one-definition rule that linkers merge silently.

The linker merges classes, inline functions and function templates of the same name in two files of
one library: if the definitions differ, code of one file silently runs with the layout of the other.
Two enumerations of one name make templates of two types one. Definitions in unnamed namespaces are
local to a file.
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
_ENUM = re.compile(r"enum\s+(?:class\s+|struct\s+)?([A-Za-z_]\w*)")
_MERGED = re.compile(r"\b(?:inline|constexpr|template|NPU_\w*INLINE)\b")
_FUNCTION = re.compile(r"([A-Za-z_][\w:]*)\s*(\([^;{]*\))[^()]*$", re.DOTALL)


def definitions(text: str) -> Iterator[str]:
    """Yield the names of types and signatures of functions that files can share."""
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
    head = re.sub(r"\s+", " ", head).strip()
    merged = _MERGED.search(head) is not None
    if "<>" in head.replace(" ", "") or re.search(r"\b(using|extern|static)\b", head):
        return
    head = _without_template_parameters(head)
    if enum := _ENUM.match(head):
        yield f"{scope}::{enum[1]}"
    elif name := _CLASS.match(head):
        if "(" not in head.split(":")[0]:
            specialised = "<" in head.split(":")[0]
            yield f"{scope}::{head.split(':')[0] if specialised else name[1]}"
    elif merged and (function := _FUNCTION.search(head)):
        yield f"{scope}::{function[1]}{function[2]}"


def _without_template_parameters(head: str) -> str:
    while head.startswith("template"):
        head = head[_end_of_parameters(head) :].strip()
    return head


def _end_of_parameters(head: str) -> int:
    depth = 0
    for place, character in enumerate(head):
        depth += (character == "<") - (character == ">")
        if character == ">" and depth == 0:
            return place + 1
    return len(head)


def violations(files: Iterable[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Yield each name defined in more than one file, with these files."""
    places = defaultdict(list)
    for path in files:
        for name in sorted(set(definitions(path.read_text(errors="replace")))):
            places[name].append(path)
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield name, paths
