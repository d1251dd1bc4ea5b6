"""Proof of the embeddings of tokens that a configuration names, which a model may treat specially.

The logits of a row with an image and of one without do not show that: their other tokens are random
ones.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .images import ImagePart
from .proof import compare
from .replaced_functions import observed_calls
from .token_embedding import PER_LAYER

if TYPE_CHECKING:
    from .image_text_parts import EmbeddingPart


def check_named_tokens(model: Any, images: ImagePart, embedding: EmbeddingPart) -> None:
    """Compare with what the model's own text gets, beside an image and without any.

    Raises NotProven.
    """
    named = _named_tokens(model, embedding.image_token)
    example = images.example()
    features = images(*example)
    # In a reply, the token of an image has none.
    _check(model, embedding, [embedding.image_token, *named], features[:0], {})
    if images.obstacle is None:
        beside = [*named, *[embedding.image_token] * len(features)]
        _check(model, embedding, beside, features, images.as_given([example]))


def _check(
    model: Any,
    embedding: EmbeddingPart,
    tokens: list[int],
    features: torch.Tensor,
    image: dict[str, torch.Tensor],
) -> None:
    """Compare the embeddings of a row of tokens."""
    ids = torch.tensor([tokens])
    told = {name: kinds * bool(image) for name, kinds in embedding.kinds.told(ids).items()}
    run = functools.partial(model, input_ids=ids, use_cache=False, **told, **image)
    try:
        calls = observed_calls(run, model.get_decoder(), "forward")
    except Exception:
        return  # a row that the model itself refuses has no embeddings to differ from
    ((_, given),) = calls
    actual = embedding(ids, features)
    own = given["inputs_embeds"].float()
    compare(own, actual[..., : own.shape[-1]], "embeddings of tokens that the configuration names")
    if embedding.tokens.of_layers:
        own = given[PER_LAYER].flatten(2).float()
        compare(own, actual[..., embedding.featured :], "embeddings of tokens for layers")


def _named_tokens(model: Any, image_token: int) -> list[int]:
    """Return the tokens that the configuration names, but that of an image."""
    named: set[int] = set()
    for name, value in vars(model.config).items():
        if "token" in name:
            listed = value if isinstance(value, (list, tuple)) else [value]
            named |= {each for each in listed if type(each) is int}
    count = model.get_input_embeddings().weight.shape[0]
    return sorted(token for token in named - {image_token} if 0 <= token < count)
