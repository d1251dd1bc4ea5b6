"""What the user of ``onnxruntime-npu serve`` chooses."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..errors import ArgumentError

# Not an argument: other users of a machine can read those.
API_KEY = "ORT_NPU_API_KEY"
_LONGEST_SENDING = 60.0  # seconds


@dataclass(frozen=True)
class Settings:
    """Limits and access of one server; sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    provider: str = "NPUExecutionProvider"
    device: int = 0  # index among the provider's
    ranks: int = 1  # processes of a language model that was exported for as many
    model_name: str | None = None  # default: the directory's name
    embeddings: str | None = None  # directory of an encoder, beside a language model
    api_key: str | None = field(default=None, repr=False)
    ssl_certfile: str | None = None  # PEM files; without a certificate the server speaks HTTP
    ssl_keyfile: str | None = None  # default: the key is in the certificate's file
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 256  # requests beyond those that the engine can run at once
    prompt_lookup_num_tokens: int = 0  # guessed at once from earlier text
    deadline: float = 600.0  # from a request's arrival to its last token
    max_body: int = 4 * 2**20
    log_format: str = "text"  # or "json"

    @property
    def patience(self) -> float:
        """How long a client may take to send the head of a request, and its body."""
        return min(self.deadline, _LONGEST_SENDING)


def api_key() -> str | None:
    """Return the key that clients have to send, None for a service without one.

    Raises ArgumentError for one that no header can hold, such as with the end of a file's line.
    """
    key = os.environ.get(API_KEY) or None
    if key is not None and not (key.isprintable() and key == key.strip()):
        raise ArgumentError(
            f"{API_KEY} expected a key without space around it, ends of lines and characters that "
            "are not printed: no client could send it"
        )
    return key
