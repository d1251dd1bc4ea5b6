"""The part of a model of images and text that runs text over a cache, mostly the model itself."""

from __future__ import annotations

from typing import Any

from .model_cache import cache_name
from .proof import NotProven


def text_model_of(model: Any) -> Any:
    """Return a causal language model: the one in a model that takes images with all tokens.

    As BLIP-2, whose own forward pass has no cache, and needs pixels. Raises NotProven if there is
    none, or if its text is an encoder-decoder.
    """
    if cache_name(model) is not None:
        return model
    inner = getattr(model, "language_model", None)
    if inner is None or cache_name(inner) is None or inner.get_output_embeddings() is None:
        raise NotProven("expected a forward pass that takes past_key_values, or a language_model")
    if inner.config.is_encoder_decoder:
        raise NotProven(
            f"expected text of a decoder, got the encoder-decoder {type(inner).__name__}"
        )
    return inner
