"""The proof of a model whose text attends to images by layers of its own (image_states.py)."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .attention_interface import NOT_CALLED, fuse_attention
from .encoder import role_of
from .image_states import StatesPart, StatesProbe, StatesTextPart, TokensPart
from .image_text_proof import (
    EMBEDDING_FILE,
    TEXT_FILE,
    VISION_FILE,
    ProvenParts,
    role_of_text,
)
from .module_replacement import replace_modules
from .proof import Findings
from .quantized_parts import used_linears
from .replaced_functions import ReplacedFunctions
from .rotary_function import replace_rotary

# Functions of the model's module that make masks which are added to scores.
_MASK_OF_TEXT = "_prepare_cross_attention_mask"
_MASK_OF_VISION = "_prepare_aspect_ratio_attention_mask"


def proven_states(model: Any, quantised: bool) -> ProvenParts:
    """Fuse attention and replace modules of all parts; prove the logits of the whole.

    ``quantised``: the linear layers of the text will be.
    """
    functions = ReplacedFunctions()
    images, tokens = StatesPart(model, functions), TokensPart(model)
    text, probe = StatesTextPart(images, functions), StatesProbe(images)
    probe.check(images, tokens, text)
    of_vision, of_text = Findings(), Findings()
    given, example = images.example(), text.example()
    used = used_linears(model, lambda _: (text(*example)[0],), of_text) if quantised else None
    replace_modules(model, role_of_text, lambda _: (text(*example)[0],), of_text)
    replace_modules(model, role_of, lambda _: images(*given), of_vision)
    module = sys.modules[type(model).__module__]
    for name, function in ((_MASK_OF_TEXT, _seen_tiles), (_MASK_OF_VISION, _seen_patches)):
        if hasattr(module, name):
            functions.add(module, name, function)
    if not fuse_attention(model, lambda _: images.states(*given), of_vision):
        of_vision.keep("", "attention", NOT_CALLED)
    if not fuse_attention(model, lambda _: text(*example), of_text):
        of_text.keep("", "attention", NOT_CALLED)
    replace_rotary(model.get_decoder(), lambda _: text(*example), functions, of_text)
    probe.check(images, tokens, text)
    parts = {VISION_FILE: images.eval(), EMBEDDING_FILE: tokens.eval(), TEXT_FILE: text.eval()}
    findings = {VISION_FILE: of_vision, EMBEDDING_FILE: Findings(), TEXT_FILE: of_text}
    return ProvenParts(parts, findings, used)


def _seen_tiles(
    cross_attention_mask: torch.Tensor, num_vision_tokens: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which places each token sees, bool [B, 1, S, L], and which tokens see any.

    cross_attention_mask: [B, S, I, tiles]. A token that sees none attends to all places, and the
    model takes nothing of its MLP.
    """
    seen = cross_attention_mask.repeat_interleave(num_vision_tokens, dim=3).flatten(2)[:, None] != 0
    seeing = seen.any(-1, keepdim=True)
    return seen | ~seeing, seeing.to(dtype)


def _seen_patches(
    aspect_ratio_mask: torch.Tensor, num_patches: int, target_length: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return which places of tiles see each other, bool [B, 1, L, L].

    aspect_ratio_mask: [B, tiles]; each tile has ``target_length`` places, of which the first
    ``num_patches`` are patches. Places that are none do not see each other.
    """
    del dtype
    is_patch = torch.arange(target_length) < num_patches
    none = ~((aspect_ratio_mask != 0)[:, :, None] & is_patch).flatten(1)
    return ~(none[:, None, :, None] & none[:, None, None, :])
