"""What an answer has to be: ``response_format`` of a request, as a grammar for the engine.

The engine takes JSON schemas, regular expressions and grammars in llguidance's dialect of Lark, and
lets a request choose only among tokens that can still become such a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from .api_errors import bad_request, shown
from .engine_messages import Guidance
from .lark import regex_literal
from .messages import Body

_NAME = "response_format"
# Compiling stops the engine for all: a schema of this size takes it about 0.1 s.
_MOST_CHARACTERS = 100_000
# The engine writes a rule for each item that an array may have: minutes and gigabytes for millions.
_MOST_ITEMS = 10_000
_ITEMS = ("minItems", "maxItems")
# The engine reads bounds as float64: from here on, numbers beyond one would be taken for right.
_EXACT = 2**53
_LEAST, _LARGEST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_SCHEMA = re.compile(r"%json\s*(?=\{)")  # in a Lark grammar
# How the engine begins to say that it does not know a part of a schema.
_UNKNOWN = ("Unimplemented keys", "Unknown format")
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
    items = 0
    for part in (part for begin in begins.get(kind, ()) for part in _objects(text, begin)):
        # Of 1e400 and the like, which is not finite, it is enough that it is too much.
        items += sum(int(min(n, 2**31)) for n in _numbers(part, _ITEMS) if n > 0)
        beyond = [n for n in _numbers(part, _LEAST) if n > _EXACT]
        beyond += [n for n in _numbers(part, _LARGEST) if n < -_EXACT]
        if beyond:
            got = shown(str(beyond[0]))
            message = f"expected a range of numbers that begins within 2**53, got a bound of {got}"
            raise bad_request(message, param=param)
    if items > _MOST_ITEMS:
        message = f"expected at most {_MOST_ITEMS} as the sum of minItems and maxItems, got {items}"
        raise bad_request(message, param=param)
    return Guidance(kind, text, param)


def _objects(text: str, begin: int) -> Iterator[dict[str, Any]]:
    """Yield each object in the schema at a place of a text."""
    try:
        schema, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):  # none, which the engine refuses, or says so itself
        return
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            left += value.values()
            yield value


def _numbers(part: dict[str, Any], names: Iterable[str]) -> list[int | float]:
    """Return the numbers of those names that an object has."""
    given = (part.get(name) for name in names)
    return [value for value in given if isinstance(value, (int, float))]


def told_refusal(reason: str) -> str:
    """Return why the engine does not follow a grammar, with what to do about it."""
    if reason.startswith(_UNKNOWN):
        return f"{reason}: leave it out of the schema, and check that of the answer"
    return reason
