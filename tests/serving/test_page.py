"""The page at /: its policy, and a conversation in Debian's Chromium if that is installed."""

from __future__ import annotations

import base64
import os
import signal
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
