"""Exported directories in the place of transformers' models: pipelines, ``generate``, calls.

- ``exported_model``: what all of them have; ``causal_lm``, ``feature_extraction``: the models.
- ``cache``: keys and values of an exported causal model, as transformers' ``generate`` passes them.
"""

from __future__ import annotations

from .cache import NPUCache
from .causal_lm import NPUModelForCausalLM
from .feature_extraction import NPUModelForFeatureExtraction

__all__ = ["NPUCache", "NPUModelForCausalLM", "NPUModelForFeatureExtraction"]
