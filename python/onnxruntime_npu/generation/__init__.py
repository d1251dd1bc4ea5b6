"""Text from exported language models; tokens are chosen in ``sampling``.

- ``causal_lm``: prompts of a causal language model; ``seq2seq``: sources of an encoder-decoder;
  ``image_text``: images and text.
- ``loop``: from a prompt to tokens, under ``logits_rules``; ``text_stream``: from tokens to text.
- ``decoding``: one step of a causal model, over its key/value cache.
"""

from __future__ import annotations

from .causal_lm import CausalLM
from .image_text import ImageTextLM
from .loop import Generation
from .seq2seq import Seq2SeqLM
from .text_stream import TextStream

__all__ = ["CausalLM", "Generation", "ImageTextLM", "Seq2SeqLM", "TextStream"]
