"""Text from exported language models; tokens are chosen in ``sampling``.

- ``causal_lm``: prompts of a causal language model; ``seq2seq``: sources of an encoder-decoder;
  ``image_text``: images and text.
- ``prompts``, ``options``: what a caller may give.
- ``loop``: from a prompt to tokens; ``logits_processing``, ``penalties``, ``logit_bias``,
  ``logits_rules``: what changes their scores.
- ``text_stream``, ``stop_strings``, ``row_text``: from tokens to text; ``streamed``: to a streamer.
- ``decoding``, ``growing_cache``, ``paged_cache``, ``row_choice``: one step of a model, over its
  key/value cache.
"""

from __future__ import annotations

from .causal_lm import CausalLM
from .image_text import ImageTextLM
from .loop import Generation
from .options import GenerationOptions
from .seq2seq import Seq2SeqLM
from .text_stream import TextStream

__all__ = ["CausalLM", "Generation", "GenerationOptions", "ImageTextLM", "Seq2SeqLM", "TextStream"]
