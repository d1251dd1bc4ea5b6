"""/v1/embeddings: bodies of requests, and answers in OpenAI's shape."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from .api_errors import bad_request, too_long
from .encoder_messages import EncoderReady
from .messages import TopBody
from .texts import Texts, check_tokens, each_text

_MOST_TEXTS = 2048


class EmbeddingsRequest(TopBody):
    """Body of /v1/embeddings; an input is text or tokens."""

    model: str | None = None
    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str] | list[list[int]]:
        """The inputs, also if one is given alone."""
        texts = each_text(self.input)
        if len(texts) > _MOST_TEXTS:
            message = f"expected at most {_MOST_TEXTS} texts, got {len(texts)}"
            raise bad_request(message, param="input")
        return texts


def check_rows(
    rows: Sequence[Sequence[int]], limits: EncoderReady, longest: int, dimensions: int | None
) -> None:
    """Raise a 400 for rows of tokens or a size of vectors that the encoder cannot make."""
    for row in rows:
        if not row:
            raise bad_request("expected texts of at least one token", param="input")
        if len(row) > longest:
            raise too_long(longest, f"a text of {len(row)}", param="input")
        check_tokens(row, limits.vocabulary, "input")
    if dimensions is not None and dimensions > limits.size:
        message = f"expected at most {limits.size} dimensions, got {dimensions}"
        raise bad_request(message, param="dimensions")


def embeddings_answer(
    name: str,
    vectors: Sequence[bytes],
    tokens: int,
    body: EmbeddingsRequest,
) -> dict[str, Any]:
    """Return the answer; ``vectors`` are float32 numbers as bytes.

    The first ``dimensions`` numbers of a vector keep its length, as OpenAI's do.
    """
    data = []
    for index, vector in enumerate(vectors):
        values = np.frombuffer(vector, np.float32)
        if body.dimensions is not None:
            values = _shortened(values, body.dimensions)
        written: Any = values.tolist()
        if body.encoding_format == "base64":
            written = base64.b64encode(values.astype("<f4").tobytes()).decode()
        data.append({"object": "embedding", "index": index, "embedding": written})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


def _shortened(values: np.ndarray, dimensions: int) -> np.ndarray:
    kept = values[:dimensions]
    length = float(np.linalg.norm(kept))
    return kept * (float(np.linalg.norm(values)) / length) if length > 0 else kept
