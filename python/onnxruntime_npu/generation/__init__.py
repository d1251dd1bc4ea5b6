"""Text from exported causal language models; tokens are chosen in ``sampling``.

- ``causal_lm``: the loop from a prompt to text.
- ``decoding``: one step of the model, over its key/value cache.
"""

from __future__ import annotations

from .causal_lm import CausalLM, Generation, TextStream

__all__ = ["CausalLM", "Generation", "TextStream"]
