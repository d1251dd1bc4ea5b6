"""A session's model, read and changed before onnxruntime reads it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .option_entries import session_entry

if TYPE_CHECKING:
    import onnx

_FOLDER_KEY = "session.model_external_initializers_file_folder_path"


def read_model(path: str | None, content: bytes | None) -> onnx.ModelProto | None:
    """Return a model without its files of weights; None for what onnxruntime will refuse."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path or io.BytesIO(content or b""), load_external_data=False)
    except (DecodeError, OSError):
        return None


def beside(path: str | None) -> dict[str, str]:
    """Return the entry that lets a model without a path find the weights beside its file."""
    return {_FOLDER_KEY: os.path.dirname(os.path.abspath(path))} if path else {}


@contextlib.contextmanager
def read_instead(session: Any, model: bytes, entries: Mapping[str, str]) -> Iterator[None]:
    """Let a session read another model, while its options have these entries."""
    path, content = session._model_path, session._model_bytes
    options = session._sess_options
    before = {key: session_entry(options, key) for key in entries}
    session._model_path, session._model_bytes = None, model
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    try:
        yield
    finally:
        session._model_path, session._model_bytes = path, content
        for key, value in before.items():
            options.add_session_config_entry(key, value)
