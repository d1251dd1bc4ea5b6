"""The page at /: its policy, and a conversation in Debian's Chromium if that is installed."""

from __future__ import annotations

import base64
import os
import re
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from . import chromium


def test_the_page_needs_nothing_from_elsewhere(server):
    answer = server.http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "//" not in answer.text.replace("// ", "")  # no address of another host
    for url in ("v1/chat/completions", "v1/models", "metrics"):
        assert f'fetch("{url}"' in answer.text


class Elements(HTMLParser):
    """The elements of a page: their tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_what_the_page_names_is_there_and_what_is_there_has_a_name(server):
    text = server.http.get("/").text
    found = Elements(text).found
    ids = [given["id"] for _, given in found if "id" in given]
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'\bat\("(\w+)"\)', text))
    assert named <= set(ids) and "log" in named
    labels = {given["for"] for tag, given in found if tag == "label"}
    fields = {given["id"] for tag, given in found if tag in ("input", "select", "textarea")}
    assert labels == fields and "message" in fields
    # A name is of what has a role, of itself or by its tag.
    for tag, given in found:
        assert "aria-label" not in given or tag in ("main", "section") or "role" in given, tag
    assert ("html", {"lang": "en"}) in found


@pytest.mark.slow
@pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Debian's package chromium")
def test_a_conversation_in_a_browser(server, tmp_path):
    # The server is shared: this opens its second lane, whose cache counts, too, if no test has yet.
    server.client.completions.create(model="tiny", prompt=[5], max_tokens=1, logprobs=0)
    page = chromium.Page(f"{server.url}/", tmp_path / "profile")
    try:
        page.wait_for("document.getElementById('model')?.textContent === 'tiny'")
        page.wait_for("document.getElementById('cache').textContent === '0 of 128 blocks'")
        page.wait_for("parseInt(document.getElementById('memory').textContent) > 10")
        # By keyboard alone: the field has the focus, Enter sends.
        page.evaluate("document.getElementById('most').value = 40")
        page.evaluate("document.getElementById('temperature').value = 0")
        for letter in "<b>hi":
            page.press(letter)
        page.press("Enter")
        page.wait_for("document.getElementById('state').textContent === 'Ready'")
        texts = page.evaluate("[...document.querySelectorAll('li p')].map((p) => p.textContent)")
        body = {
            **{"messages": [{"role": "user", "content": "<b>hi"}], "temperature": 0},
            "max_tokens": 40,
        }
        expected = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert texts == ["<b>hi", expected["message"]["content"]]
        assert "tokens in" in page.evaluate("document.querySelector('li small').textContent")

        # Escape stops an answer, with the engine standing still so that it does not end before.
        engine = server.engine_process()
        os.kill(engine, signal.SIGSTOP)
        try:
            page.press("x")
            page.press("Enter")
            page.wait_for("!document.getElementById('stop').disabled")
            page.press("Escape")
            page.wait_for("document.getElementById('stop').disabled")
        finally:
            os.kill(engine, signal.SIGCONT)
        assert (
            page.evaluate("[...document.querySelectorAll('small')].pop().textContent") == "stopped"
        )
        server.wait_for("npu_requests_running", 0)

        page.evaluate("document.querySelector('details').open = true")
        told = page.accessible()
        for role, name in (
            ("heading", "Chat with tiny"),
            ("region", "The server now"),
            ("button", "Send"),
            ("button", "New conversation"),
            ("spinbutton", "Temperature"),
        ):
            assert (role, name) in told, told
        assert any(role == "textbox" and name.startswith("Message") for role, name in told)
        assert ("listitem", "You") in told and ("listitem", "The model") in told
        unnamed = [role for role, name in told if role in ("button", "textbox") and not name]
        assert unnamed == []
        if picture := os.environ.get("NPU_TEST_SCREENSHOT"):  # to look at
            Path(picture).write_bytes(base64.b64decode(page.screenshot()))
        assert page.console == []

        # A message that is refused is not sent again with the next one.
        page.evaluate("document.getElementById('clear').click()")
        page.evaluate("document.getElementById('message').value = 'a'.repeat(300)")
        page.press("Enter")
        page.wait_for("document.querySelector('li small.error') !== null")
        page.press("x")
        page.press("Enter")
        page.wait_for("document.querySelectorAll('li small').length === 2")
        told = page.evaluate("[...document.querySelectorAll('li small')].pop().textContent")
        assert "tokens in" in told
    finally:
        page.close()
