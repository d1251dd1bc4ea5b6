"""Ranges of numbers in a schema, as far as the engine keeps them exactly."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    "bounds",
    [
        {"minimum": 10**20},
        {"exclusiveMinimum": 2**53 + 1},
        {"maximum": -(10**20)},
        {"exclusiveMaximum": -1e300, "type": "number"},
        {"minimum": 10**4000},
    ],
    ids=lambda bounds: str(bounds)[:30],
)
def test_ranges_that_the_engine_would_not_keep_are_refused(server, bounds):
    schema = {"type": "object", "properties": {"a": {"type": "integer", **bounds}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": form}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "response_format" and "within 2**53" in error["message"]


def test_ranges_of_programs_integers_are_kept(server):
    whole = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    schema = {"type": "object", "properties": {"a": whole, "minimum": {"enum": ["x"]}}}
    schema |= {"required": ["a", "minimum"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "a"}], "response_format": form, "seed": 1}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    made = json.loads(choice["message"]["content"])
    assert 0 <= made["a"] < 2**63 and made["minimum"] == "x"
