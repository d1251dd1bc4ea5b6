"""Exported directories in the place of transformers' models: pipelines, ``generate``, calls.

- ``exported_model``: what all of them have; ``generating_model``: those that make text.
- ``causal_lm``, ``seq2seq_lm``, ``feature_extraction``: the models.
- ``batch_cache``: what all caches have; ``cache``, ``seq2seq_cache``: keys and values, as
  transformers' ``generate`` passes them.
"""

from __future__ import annotations

from .causal_lm import NPUModelForCausalLM
from .feature_extraction import NPUModelForFeatureExtraction
from .seq2seq_lm import NPUModelForSeq2SeqLM

__all__ = [
    "NPUModelForCausalLM",
    "NPUModelForFeatureExtraction",
    "NPUModelForSeq2SeqLM",
]
