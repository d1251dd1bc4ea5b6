"""Which tokens a model of images and text tells apart from text, and what it computes with them.

In Gemma 3 and 4, tokens of an image see each other in both directions, in PaliGemma all those of a
prompt. In ERNIE 4.5 VL, tokens of images, and those at their start and end, have experts of their
own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from .proof import NotProven
from .replaced_functions import ReplacedFunctions

# Of a text's input: 0 for text, or, where all tokens of a prompt see each other, for these.
KINDS = "token_type_ids"
# Of a file's metadata: the token in whose places features are put, those of a prompt that are of
# kind 1, and the kind of generated ones.
_IMAGE_TOKEN, _TOKENS, _GENERATED = "image_token_id", "image_token_ids", "generated_kind"
_OF_EXPERTS = "moe_mm_token_type_ids"
_OF_POSITIONS = "mm_token_type_ids"
_AROUND = [f"{name}_{place}" for name in ("image", "video") for place in ("start", "end")]


class TokenKinds:
    """The kinds of tokens that a model takes, if it takes any.

    Attributes:
        image_token: that in whose places features are put.
        tokens: those that are none of text; the first is that of features.
        joined: whether tokens of an image see each other in both directions.
        generated: the kind of generated tokens; 1 if all tokens of a prompt see each other.
    """

    def __init__(self, model: Any) -> None:
        self.image_token = image_token_of(model.config)
        taken = inspect.signature(model.forward).parameters
        known = (KINDS, _OF_EXPERTS, _OF_POSITIONS)
        if others := [n for n in taken if n.endswith(KINDS) and n not in known]:
            raise NotProven(f"expected kinds of tokens as one of {known}, got {', '.join(others)}")
        self._told = [name for name in known if name in taken]
        # Gemma 4 takes for its masks what other models take for positions only.
        seen = getattr(model.config.get_text_config(), "use_bidirectional_attention", None)
        self._of_masks = KINDS if KINDS in taken else _OF_POSITIONS
        self.joined = KINDS in taken or (_OF_POSITIONS in taken and seen == "vision")
        self._of_experts = _OF_EXPERTS in taken
        self.generated = _kind_of_next(model) if KINDS in taken else 0
        self.tokens = [self.image_token]
        if self._of_experts:
            names = [*(f"{place}_token_id" for place in _AROUND), "video_token_id"]
            self.tokens += [int(getattr(model.config, name)) for name in names]

    @property
    def taken(self) -> bool:
        """Whether the text takes them."""
        return self.joined or self._of_experts

    @property
    def of_prompts(self) -> list[int]:
        """The tokens that are of kind 1 in a prompt."""
        return [] if self.generated else self.tokens

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of them."""
        return metadata_of(self.image_token, self.of_prompts, self.generated)

    def of(self, ids: torch.Tensor, generated: int = 0) -> torch.Tensor:
        """Return the kinds of tokens [B, S], of which the last ones were generated, int64."""
        kinds = torch.isin(ids, torch.tensor(self.of_prompts, dtype=ids.dtype)).long()
        if self.generated and generated:
            kinds[:, -generated:] = self.generated
        return kinds

    def told(self, ids: torch.Tensor, generated: int = 0) -> dict[str, torch.Tensor]:
        """Return what is said to the model of tokens [B, S], the last ones of which were generated.

        The others are as a processor says.
        """
        of_images = (ids == self.image_token).long()
        kinds = self.of(ids, generated)
        return {name: of_images if name == _OF_POSITIONS else kinds for name in self._told}

    def options(self, kinds: torch.Tensor, new: int) -> dict[str, torch.Tensor]:
        """Return what the model takes of kinds [B, T] of all tokens, of which some are new."""
        return {self._of_masks: kinds} if self.joined else {_OF_EXPERTS: kinds[:, -new:]}


def _kind_of_next(model: Any) -> int:
    """Return the kind that generation gives to the token after one of kind 0."""
    told = {KINDS: torch.zeros((1, 1), dtype=torch.int64)}
    return int(model._update_model_kwargs_for_generation({}, told)[KINDS][0, -1])


def metadata_of(image_token: int, of_prompts: Sequence[int], generated: int) -> dict[str, str]:
    """Return what a runner has to know of the tokens of a model."""
    return {
        _IMAGE_TOKEN: str(image_token),
        _TOKENS: " ".join(map(str, of_prompts)),
        _GENERATED: str(generated),
    }


def image_token_of(config: Any) -> int:
    """Return the token that stands for an image; raises NotProven without one."""
    for name in ("image_token_id", "image_token_index"):
        if isinstance(token := getattr(config, name, None), int):
            return token
    raise NotProven("expected image_token_id in the configuration")


def choose_experts_in_graph(model: Any, functions: ReplacedFunctions) -> None:
    """Let experts of images and those of text both compute every token, and choose by its kind.

    The model gathers the tokens of each kind, whose number no graph knows.
    """
    for module in model.modules():
        if hasattr(module, "text_moe") and hasattr(module, "vision_moe"):
            functions.add(module, "forward", partial(_by_kind, module))


def _by_kind(
    module: Any, hidden: torch.Tensor, kinds: torch.Tensor | None = None
) -> tuple[torch.Tensor, None]:
    """Return [B, S, H] of hidden [B, S, H], and no logits of the router.

    kinds: [B, S], 0 for text; None: all are.
    """
    kinds = hidden.new_zeros(hidden.shape[:2]) if kinds is None else kinds
    of_text, of_images = (
        experts(hidden)[0].view_as(hidden) for experts in (module.text_moe, module.vision_moe)
    )
    chosen = torch.where(kinds[..., None] > 0, of_images, of_text)
    if module.shared_experts is not None:
        chosen = chosen + module.shared_experts(hidden)
    return chosen, None
