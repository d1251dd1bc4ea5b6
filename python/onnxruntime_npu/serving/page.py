"""The page at ``/``: a chat with the model, in one file without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import HTMLResponse


def _response() -> HTMLResponse:
    content = files(__package__).joinpath("page.html").read_text(encoding="utf-8")

    def hash_of(tag: str) -> str:
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    # Nothing runs or is loaded but what the file holds, whatever a model writes.
    policy = (
        f"default-src 'none'; script-src 'sha256-{hash_of('script')}'; "
        f"style-src 'sha256-{hash_of('style')}'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(content, headers=headers)


PAGE = _response()
