"""What a client is told of a body that cannot be meant, from pydantic's first error."""

from __future__ import annotations

import json
import re
from typing import Any

from .api_errors import shown

_NO_OBJECT = ("model_attributes_type", "model_type", "dict_type")


def told_mistake(error: Any, body: Any) -> tuple[str | None, str]:
    """Return the parameter and the message of an error of a body."""
    if error["type"] == "json_invalid":
        return None, f"the body is no JSON: {error.get('ctx', {}).get('error', error['msg'])}"
    if error["type"] in (*_NO_OBJECT, "missing") and len(error["loc"]) == 1:
        return None, "expected a JSON object with Content-Type: application/json"
    fields = _fields(error, body)
    param = fields[0] if fields else None
    place = ".".join(map(shown, fields))
    if error["type"] == "extra_forbidden":
        return param, f"unknown parameter {place}"
    return param, f"{place or 'body'}: {_told(error)}"


def _fields(error: Any, body: Any) -> list[str]:
    """Return the way to a place of a body, without the names of the alternatives in it.

    Pydantic names the form that it took a value for, such as a text or a list, as if the value had
    a member of that name.
    """
    parts = error["loc"][1:]
    fields = []
    value = body
    for index, part in enumerate(parts):
        within_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if within_list or (isinstance(value, dict) and part in value):
            value = value[part]
        elif error["type"] != "missing" or index < len(parts) - 1:
            continue
        fields.append(str(part))
    return fields


def _told(error: Any) -> str:
    """Return what was expected."""
    context = error.get("ctx", {})
    if error["type"] == "union_tag_invalid":
        member = context["discriminator"].strip("'")
        got = shown(repr(context["tag"]))
        return f"expected {member} to be one of {context['expected_tags']}, got {got}"
    if error["type"] == "union_tag_not_found":
        return f"expected an object with {context['discriminator']}"
    if error["type"] == "missing":
        return "expected a value, got none"
    given = error["input"]
    got = _short(given)
    if error["type"] in _NO_OBJECT:
        return f"expected an object, got {got}"
    if error["type"] in ("too_short", "too_long"):
        least = error["type"] == "too_short"
        bound = f"least {context['min_length']}" if least else f"most {context['max_length']}"
        # A list of which only so many are read has more.
        return f"expected at {bound}, got {len(given)}"
    if error["type"] == "string_pattern_mismatch":
        return f"expected a text that matches {context['pattern']}, got {got}"
    # "Input should be …", "String should have at most …", or what was written here
    expected = re.sub(r"^\w+ should (be |have )?", "", error["msg"]).removeprefix("expected ")
    return f"expected {expected}, got {got}"


def _short(given: Any) -> str:
    """Return a value as JSON if it is short, or what kind of value it is."""
    if isinstance(given, str):
        return json.dumps(shown(given), ensure_ascii=False)
    if isinstance(given, (list, dict)):
        return "a list" if isinstance(given, list) else "an object"
    return shown(json.dumps(given))
