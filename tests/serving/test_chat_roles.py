"""Roles of messages and other values, as chat templates know them."""

from __future__ import annotations

import pytest
from onnxruntime_npu.serving.api_errors import ApiError
from onnxruntime_npu.serving.chat import Conversation, encode_chat
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


def text(model, template, *roles, **arguments):
    model.tokenizer.chat_template = template
    messages = [Message(role=role, content=role[:3]) for role in roles]
    return model.decode(encode_chat(model, Conversation(messages, arguments=arguments)))


def test_a_developer_is_the_system_where_the_template_knows_none(model):
    assert text(model, DROPPING, "developer", "user") == "system:dev;user:use;"
    assert text(model, DROPPING, "system", "developer") == "system:sys;system:dev;"
    named = {"default": DROPPING, "tool_use": KNOWING}
    assert text(model, named, "developer") == "system:dev;"


def test_a_developer_stays_one_where_the_template_says_so(model):
    assert text(model, KNOWING, "developer", "user") == "D:dev"


def test_a_template_is_given_what_else_it_reads(model):
    thinking = DROPPING + "{% if enable_thinking is false %}<think></think>{% endif %}"
    assert text(model, thinking, "user") == "user:use;"
    assert text(model, thinking, "user", enable_thinking=True) == "user:use;"
    assert text(model, thinking, "user", enable_thinking=False) == "user:use;<think></think>"
    dividing = DROPPING + "{{ 1 // parts }}{{ names.pop() }}"
    for wrong in ({"parts": 0}, {"parts": 1, "names": []}, {"parts": "a"}):
        with pytest.raises(ApiError, match="template refuses"):
            text(model, dividing, "user", **wrong)


def test_values_of_a_template_are_sent_with_a_request(server):
    values = {"chat_template_kwargs": {"enable_thinking": False}}
    chat = {"messages": [{"role": "user", "content": "a"}], **values}
    asked = {
        "/v1/chat/completions": {**chat, "max_tokens": 1},
        "/v1/responses": {"input": "a", "max_output_tokens": 1, **values},
        "/tokenize": chat,
    }
    for path, body in asked.items():
        assert server.http.post(path, json=body).status_code == 200
        for name in ("messages", "tools", "chat_template", "add_generation_prompt", "tokenize"):
            wrong = {**body, "chat_template_kwargs": {name: "a"}}
            answer = server.http.post(path, json=wrong)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == "chat_template_kwargs"
