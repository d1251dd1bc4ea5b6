"""An OpenAI-compatible service for exported directories: ``onnxruntime-npu serve``.

- ``server``: the process that listens, and its signals.
- ``service``: the models that are served.
- ``app``, ``routes``, ``middleware``, ``schemas``, ``answers``, ``api_errors``: the interface.
- ``served_directory``, ``served_model``, ``texts``, ``messages``, ``chat``, ``sampling_options``:
  from a request to tokens and options.
- ``response_format``, ``lark``, ``tools``, ``tool_formats``, ``tool_calls``: answers of a form, and
  calls.
- ``choices``, ``logprobs``, ``disconnection``: from new tokens to text, while it is wanted.
- ``embeddings``: vectors of texts.
- ``engine``, ``encoder``, ``supervised``, ``child_connection``: the clients of the models'
  processes, which are started again when they fail.
- ``engine_process``, ``engine_messages``: that of a language model; one thread owns its two lanes.
- ``lane``: what both do. ``batch``: onnxruntime-genai's engine. ``logits_lane``, ``logits_row``,
  ``logits_model``, ``token_texts``: requests whose logits are seen or changed.
- ``ranked_engine``, ``leader_process``: the same two of a model that several ranks compute.
  ``rank_processes``: the ranks, as the leader sees them. ``rank_process``: each of them.
- ``encoder_process``, ``encoder_messages``: that of an encoder; ``child_process``: what they share.
- ``page``: the chat at ``/``.
- ``metrics``, ``settings``.
- ``asgi``: all of this as an application, for another server.
- ``ray_app``: several of these services behind one address, by Ray Serve.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from ..extras import told_extra

# Names that need packages of an extra: where they are, the extra.
_LATE = {"create_app": ("asgi", "serve"), "ray_app": ("ray_app", "ray")}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, extra = _LATE[name]
    try:
        module = importlib.import_module(f".{home}", __name__)
    except ModuleNotFoundError as error:
        raise told_extra(f"{__name__}.{name}", error, extra) from error
    value = module if name == home else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that the installed packages allow: ``help`` resolves each of them."""
    needed = {"create_app": "fastapi", "ray_app": "ray"}
    found = (name for name in _LATE if importlib.util.find_spec(needed[name]) is not None)
    return sorted({*globals(), *found})
