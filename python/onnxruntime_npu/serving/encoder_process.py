"""The process of an encoder: ``python -m …encoder_process FD DIR PROVIDER DEVICE``."""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import onnxruntime_npu

from .channel import Channel
from .child_process import Inbox, serve_connection
from .encoder_messages import Embed, Embedded, EncoderReady
from .engine_messages import Cancel

_CPU = "CPUExecutionProvider"
# Of one run: more would let a short text wait long for those beside it.
_MOST_ROWS, _MOST_TOKENS = 32, 8192


class EncoderModel:
    """An encoder exported with a pooling, in a session of its own."""

    def __init__(self, directory: Path, provider: str, device: int) -> None:
        """Open it on one of the provider's devices; raises onnxruntime's errors."""
        if provider != _CPU:
            onnxruntime_npu.register()
        chosen = (provider, {"device_id": str(device)})
        providers = [_CPU] if provider == _CPU else [chosen, _CPU]
        self._session = ort.InferenceSession(str(directory / "model.onnx"), providers=providers)
        self._inputs = {each.name for each in self._session.get_inputs()}
        self._output = self._session.get_outputs()[1].name
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.vocabulary = _from_config(config, "vocab_size") or 2**31
        self._padding = _from_config(config, "pad_token_id") or 0

    def embed(self, rows: list[list[int]]) -> np.ndarray:
        """Return vectors [B, H] in float32 of rows of tokens of any lengths."""
        ids = np.full((len(rows), max(map(len, rows))), self._padding, np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feed = {name: value for name, value in given.items() if name in self._inputs}
        return np.ascontiguousarray(self._session.run([self._output], feed)[0], np.float32)


def _from_config(config: dict[str, Any], name: str) -> int | None:
    # That of a tower, such as CLIP's, is nested.
    return config.get(name) or (config.get("text_config") or {}).get(name)


def _run(channel: Channel, directory: Path, provider: str, device: int) -> None:
    model = EncoderModel(directory, provider, device)
    size = model.embed([[0, 0], [0]]).shape[1]
    channel.send(EncoderReady(size, model.vocabulary))
    inbox = Inbox(channel)
    waiting: deque[tuple[int, int, list[int]]] = deque()  # request, row, tokens
    while True:
        for message in inbox.take(wait=not waiting):
            if message is None:
                return
            if isinstance(message, Embed):
                # Rows of about the same length share a run, so that little of it is padding.
                rows = sorted(enumerate(message.rows), key=lambda row: len(row[1]))
                waiting.extend((message.key, i, tokens) for i, tokens in rows)
            elif isinstance(message, Cancel):
                waiting = deque(row for row in waiting if row[0] != message.key)
        if waiting:
            channel.send(_embedded(model, _next_batch(waiting)))


def _embedded(model: EncoderModel, batch: list[tuple[int, int, list[int]]]) -> Embedded:
    try:
        vectors = model.embed([tokens for _, _, tokens in batch])
    except Exception as error:  # onnxruntime has several; the session stays usable
        reason = " ".join(str(error).split())
        return Embedded([], [(key, reason) for key in {key for key, _, _ in batch}])
    made = zip(batch, vectors, strict=True)
    return Embedded([(key, row, vector.tobytes()) for (key, row, _), vector in made], [])


def _next_batch(
    waiting: deque[tuple[int, int, list[int]]],
) -> list[tuple[int, int, list[int]]]:
    batch: list[tuple[int, int, list[int]]] = []
    longest = 0
    while waiting and len(batch) < _MOST_ROWS:
        longest = max(longest, len(waiting[0][2]))
        if batch and longest * (len(batch) + 1) > _MOST_TOKENS:
            break
        batch.append(waiting.popleft())
    return batch


if __name__ == "__main__":
    sys.exit(serve_connection(sys.argv[1:], _run))
