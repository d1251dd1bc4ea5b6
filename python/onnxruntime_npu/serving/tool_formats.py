"""How models write calls of tools: one description for each way, found by the chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolFormat:
    """A way to write calls.

    Attributes:
        recognised: whether a model with this chat template and these added tokens writes so.
        opening: text before a call, or before a list of calls; may be a special token. "": the
            answer begins with the call, or is none.
        closing: text after it; "": the end of the answer.
        many: several calls are ``repeated`` with opening and closing, are a ``list`` between them,
            or stand one after the other, ``separated`` by semicolons.
        arguments: the key that has them.
        short_ids: identifiers are nine letters and digits, as the template demands.
    """

    recognised: Callable[[str, Sequence[str]], bool]
    opening: str
    closing: str
    many: str
    arguments: str = "arguments"
    short_ids: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that may be special tokens, which answers otherwise leave out."""
        return tuple(text for text in (self.opening.strip(), self.closing.strip()) if text)

    def grammar(
        self, tools: Sequence[tuple[str, str]], literal: Callable[[str], str], parallel: bool
    ) -> str:
        """Return rules of a Lark grammar: ``calls``, and ``text``, which may end with calls.

        Args:
            tools: name and JSON schema of the arguments, as text, of each.
            literal: writes a text in which special tokens may stand.
            parallel: whether several calls may follow each other.
        """
        opening, closing = literal(self.opening), literal(self.closing)
        rules = [
            f"call_{i}: {_quoted(self._before(name))} %json {schema} {_quoted('}')}"
            for i, (name, schema) in enumerate(tools)
        ]
        rules.append(f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}")
        rules.append(f"calls: {opening} tail")
        if self.many == "repeated":
            more = _more(f"{_quoted(chr(10))} {opening}", f"call {closing}", parallel)
            rules.append(f"tail: call {closing}{more}")
        elif self.many == "list":
            more = _more(_quoted(", "), "call", parallel)
            rules.append(f"tail: {_quoted('[')} call{more} {_quoted(']')} {closing}")
        else:
            rules.append(f"tail: call{_more(_quoted('; '), 'call', parallel)}")
        return "\n".join([*rules, *self._text_rules(literal)])

    def _text_rules(self, literal: Callable[[str], str]) -> list[str]:
        mark = self.opening.strip()
        rest = literal(self.opening.removeprefix(mark))
        if not mark:
            return ["text: REST | calls", r"REST: /([^{](.|\n)*)?/"]
        if literal(mark) != _quoted(mark):  # a special token, of which no text is made
            return [f"text: REST | REST {literal(mark)} {rest} tail", r"REST: /(.|\n)*/"]
        pattern = re.escape(mark).replace("/", "\\/")
        return [
            f"text: REST | before {rest} tail",
            rf"before[lazy]: /(.|\n)*{pattern}/",
            rf"REST: /(.|\n)*/ & ~/(.|\n)*{pattern}(.|\n)*/",
        ]

    def _before(self, name: str) -> str:
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '


def _more(separator: str, rule: str, parallel: bool) -> str:
    return f" ({separator} {rule})*" if parallel else ""


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_HERMES = ToolFormat(  # Hermes, Qwen 2.5, Qwen 3
    # Others write XML between the same marks.
    lambda template, added: (
        "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template
    ),
    opening="<tool_call>\n",
    closing="\n</tool_call>",
    many="repeated",
)
_MISTRAL = ToolFormat(
    lambda template, added: "[TOOL_CALLS]" in template and "[ARGS]" not in template,
    opening="[TOOL_CALLS]",
    closing="",
    many="list",
    short_ids=True,
)
_PHI = ToolFormat(  # Phi-4-mini; its template shows definitions only
    lambda template, added: "<|/tool_call|>" in [*added, template],
    opening="<|tool_call|>",
    closing="<|/tool_call|>",
    many="list",
)
_GRANITE = ToolFormat(
    lambda template, added: "<|tool_call|>" in template,
    opening="<|tool_call|>",
    closing="",
    many="list",
)
_LLAMA = ToolFormat(  # Llama 3.1 and later
    lambda template, added: "<|python_tag|>" in added and '"parameters"' in template,
    opening="",
    closing="",
    many="separated",
    arguments="parameters",
)
_FORMATS = (_HERMES, _MISTRAL, _PHI, _GRANITE, _LLAMA)


def tool_format(template: str, added_tokens: Sequence[str]) -> ToolFormat | None:
    """Return how a model with this template writes calls; None if that is not known."""
    found = (each for each in _FORMATS if each.recognised(template, added_tokens))
    return next(found, None)


def read_calls(text: str, arguments: str) -> list[tuple[str, str]]:
    """Return name and arguments, JSON as it was written, of calls in a text.

    ``text`` is a call, a list of calls, or calls separated by semicolons; [] if it is something
    else. ``arguments`` is the key that has them.
    """
    try:
        calls, at = [], _skip(text, 0)
        as_list = text[at : at + 1] == "["
        at = _skip(text, at + 1) if as_list else at
        separator = "," if as_list else ";"
        while True:
            members, at = _members(text, at)
            calls.append((_name(members), _arguments(members, arguments)))
            at = _skip(text, at)
            if text[at : at + 1] != separator:
                break
            at = _skip(text, at + 1)
        if as_list:
            at = _skip(text, _after(text, at, "]"))
        return calls if at == len(text) else []
    except ValueError:
        return []


def read_begun(text: str, arguments: str) -> list[tuple[str, str]]:
    """Return the same of a text that breaks off somewhere.

    The last call has its arguments as far as they came, and is left out if its name is not whole.
    """
    calls = []
    at = _skip(text, 0)
    at = _skip(text, at + 1) if text[at : at + 1] == "[" else at
    while True:
        try:
            members, end = _members(text, at)
            calls.append((_name(members), _arguments(members, arguments)))
        except ValueError:
            break
        at = _skip(text, end)
        if text[at : at + 1] not in (",", ";"):
            return calls
        at = _skip(text, at + 1)
    if begun := _BEGUN.match(text, at):
        name, key, written = begun.groups()
        calls.append((json.loads(name), _begun_value(written) if key == arguments else ""))
    return calls


_DECODER = json.JSONDecoder()
_BEGUN = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*(?:,\s*"(\w+)"\s*:\s*(.*))?', re.DOTALL
)


def _begun_value(text: str) -> str:
    """Return the value at the beginning of a text, or all of it if the value does not end."""
    try:
        return text[: _DECODER.raw_decode(text)[1]]
    except ValueError:
        return text


def _members(text: str, at: int) -> tuple[dict[str, str], int]:
    """Return the members of the object at a place, values as they are written, and its end."""
    at = _skip(text, _after(text, at, "{"))
    members: dict[str, str] = {}
    while text[at : at + 1] != "}":
        if members:
            at = _skip(text, _after(text, at, ","))
        key, at = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError
        at = _skip(text, _after(text, _skip(text, at), ":"))
        _, end = _DECODER.raw_decode(text, at)
        members[key] = text[at:end]
        at = _skip(text, end)
    return members, at + 1


def _name(members: dict[str, str]) -> str:
    name: Any = json.loads(members.get("name", "null"))
    if not isinstance(name, str):
        raise ValueError
    return name


def _arguments(members: dict[str, str], key: str) -> str:
    if len(members) == 1:  # the name alone
        return "{}"
    written = members.get(key, "")
    value = json.loads(written)
    if isinstance(value, str):  # JSON within a string
        written, value = value, json.loads(value)
    if not isinstance(value, dict):
        raise ValueError
    return written


def _after(text: str, at: int, expected: str) -> int:
    if text[at : at + 1] != expected:
        raise ValueError
    return at + 1


def _skip(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at
