"""Roles of messages, as chat templates know them."""

from __future__ import annotations

import pytest
from onnxruntime_npu.serving.chat import encode_chat
from onnxruntime_npu.serving.messages import Message
from onnxruntime_npu.serving.served_model import ServedModel

# As most templates are: a role that they do not know is left out, without an error.
DROPPING = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
    "{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
)
KNOWING = (
    "{% for m in messages %}{% if m.role == 'developer' %}D:{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.fixture
def model(served_directory):
    return ServedModel(served_directory)


def text(model, template, *roles):
    model.tokenizer.chat_template = template
    messages = [Message(role=role, content=role[:3]) for role in roles]
    return model.decode(encode_chat(model, messages))


def test_a_developer_is_the_system_where_the_template_knows_none(model):
    assert text(model, DROPPING, "developer", "user") == "system:dev;user:use;"
    assert text(model, DROPPING, "system", "developer") == "system:sys;system:dev;"
    named = {"default": DROPPING, "tool_use": KNOWING}
    assert text(model, named, "developer") == "system:dev;"


def test_a_developer_stays_one_where_the_template_says_so(model):
    assert text(model, KNOWING, "developer", "user") == "D:dev"
