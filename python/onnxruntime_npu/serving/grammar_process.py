"""The process that reads grammars first: ``python -m …grammar_process FD DIR PROVIDER DEVICE``.

A client's grammar may take minutes, gigabytes, or more stack than there is. Here it ends nothing
but this process, which the server starts again, and not the engine's with all that runs there.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

import numpy as np

from .channel import Channel
from .child_process import serve_connection
from .engine_messages import Guidance
from .token_texts import GrammarError, TokenTexts

_MOST_SECONDS = 1.0  # of this process's time: as long stands the engine still, which reads it again
_MOST_BYTES = 2**30


def _run(channel: Channel, directory: Path, provider: str, device: int) -> None:
    settings = json.loads((directory / "genai_config.json").read_text(encoding="utf-8"))["model"]
    stop = settings.get("eos_token_id", [])
    try:
        texts = TokenTexts(
            directory, settings["vocab_size"], [stop] if isinstance(stop, int) else list(stop)
        )
    except ValueError:
        channel.send(False)
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel.send(True)
    while True:
        try:
            guidance = channel.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)  # its signal ends the process
        reason = _refusal(texts, guidance)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.send(reason)


def _refusal(texts: TokenTexts, guidance: Guidance) -> str:
    """Return why this is no grammar, or why no answer follows it; "": it can be followed.

    Some grammars are only built up by the tokens that follow them, so that one is tried.
    """
    try:
        mask = texts.mask(guidance)
        scores = mask(np.zeros((1, texts.vocabulary), np.float32))
        allowed = np.setdiff1d(np.flatnonzero(np.isfinite(scores[0])), texts.stop_tokens)
        if allowed.size:
            mask.add(allowed[:1])
            mask(scores)
    except GrammarError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(serve_connection(sys.argv[1:], _run))
