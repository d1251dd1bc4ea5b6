"""BigBird's attention to blocks of tokens, which is exported as attention to all of them.

transformers attends to all tokens of short texts and, from the first of these on, of any text.
"""

from __future__ import annotations

from typing import Any

_SPARSE, _FULL = "block_sparse", "original_full"  # transformers' names of both


def attend_to_all(model: Any) -> str | None:
    """Let a model attend to all tokens from now on; return a warning if it did not."""
    config = model.config
    parts = [each for each in model.modules() if getattr(each, "attention_type", None) == _SPARSE]
    parts = [each for each in parts if hasattr(each, "set_attention_type")]
    if not parts:
        return None
    for part in parts:  # from the outermost, which changes those inside
        part.set_attention_type(_FULL)
    config.attention_type = _FULL
    shortest = (5 + 2 * config.num_random_blocks) * config.block_size
    return (
        f"attention_type {_SPARSE!r} is exported as {_FULL!r}: tokens see all others also in texts "
        f"of more than {shortest}, in which those of transformers see blocks of them"
    )
