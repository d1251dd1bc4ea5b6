"""What an answer has to be: ``response_format`` of a request, as a grammar for the engine.

The engine takes JSON schemas, regular expressions and grammars in llguidance's dialect of Lark, and
lets a request choose only among tokens that can still become such a text.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .api_errors import bad_request
from .engine_messages import Guidance
from .lark import regex_literal
from .messages import Body

_NAME = "response_format"
# Compiling stops the engine for all: a schema of this size takes it about 0.1 s.
_MOST_CHARACTERS = 100_000
# The engine writes a rule for each item that an array may have: minutes and gigabytes for millions.
_MOST_ITEMS = 10_000
_ITEMS = ("minItems", "maxItems")
_SCHEMA = re.compile(r"%json\s*(?=\{)")  # in a Lark grammar
# As Python writes JSON, which is how models have seen most of it. With free white space a model may
# write nothing else until its context is full.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class AnyText(Body):
    """No constraint."""

    type: Literal["text"]


class AnyObject(Body):
    """A JSON object."""

    type: Literal["json_object"]


class NamedSchema(Body):
    """A JSON schema; the answer always follows it, ``strict`` or not."""

    model_config = ConfigDict(protected_namespaces=(), populate_by_name=False)

    name: str
    given: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonOfSchema(Body):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class Regex(Body):
    """Text that a regular expression matches as a whole."""

    type: Literal["regex"]
    regex: Annotated[str, Field(min_length=1)]


class Grammar(Body):
    """Text of a grammar, whose rule ``start`` is the answer."""

    type: Literal["grammar"]
    grammar: Annotated[str, Field(min_length=1)]


ResponseFormat = Annotated[
    AnyText | AnyObject | JsonOfSchema | Regex | Grammar, Field(discriminator="type")
]


def guidance_of(asked: ResponseFormat | None) -> Guidance | None:
    """Return what the engine has to follow, None for any text."""
    match asked:
        case AnyObject():
            return checked("json_schema", json_text({"type": "object"}), _NAME)
        case JsonOfSchema():
            return checked("json_schema", json_text(asked.json_schema.given), _NAME)
        case Regex():
            return checked("regex", asked.regex, _NAME)
        case Grammar():
            return checked("lark_grammar", asked.grammar, _NAME)
    return None


def as_rule(asked: ResponseFormat) -> str:
    """Return the same for the right side of a rule of a Lark grammar.

    Raises a 400 for a grammar, which is none.
    """
    match asked:
        case AnyObject():
            return f"%json {json_text({'type': 'object'})}"
        case JsonOfSchema():
            return f"%json {json_text(asked.json_schema.given)}"
        case Regex():
            return regex_literal(asked.regex)
    raise bad_request("expected no grammar beside tools: use another format", param=_NAME)


def json_text(schema: dict[str, Any]) -> str:
    """Return a schema with the layout that its JSON is written in."""
    return json.dumps({"x-guidance": _LAYOUT, **schema})


def checked(kind: str, text: str, param: str) -> Guidance:
    """Return a grammar; raises a 400 for one that is too long or holds a zero character.

    ``param`` is the parameter that asked for it.
    """
    if len(text) > _MOST_CHARACTERS:
        message = f"expected at most {_MOST_CHARACTERS} characters, got {len(text)}"
        raise bad_request(message, param=param)
    if "\0" in text:  # would end the text for the engine
        raise bad_request("expected no zero character: write \\x00", param=param)
    begins = {"json_schema": [0], "lark_grammar": [each.end() for each in _SCHEMA.finditer(text)]}
    if (items := sum(_items(text, begin) for begin in begins.get(kind, ()))) > _MOST_ITEMS:
        message = f"expected at most {_MOST_ITEMS} as the sum of minItems and maxItems, got {items}"
        raise bad_request(message, param=param)
    return Guidance(kind, text, param)


def _items(text: str, begin: int) -> int:
    """Return the sum of the numbers of items in the schema at a place of a text."""
    try:
        schema, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):  # none, which the engine refuses, or says so itself
        return 0
    found, left = 0, [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            counts = [value.get(name) for name in _ITEMS]
            # Of 1e400 and the like, which is not finite, it is enough that it is too much.
            found += sum(
                int(min(n, 2**31)) for n in counts if isinstance(n, (int, float)) and n > 0
            )
    return found
