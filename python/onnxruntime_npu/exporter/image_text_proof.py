"""The proof of a model of images and text, whose parts are fused before they are written."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from .attention_interface import NOT_CALLED, fuse_attention
from .encoder import role_of
from .image_text_parts import EmbeddingPart, ImageTextProbe, TextPart
from .images import ImagePart
from .images.patches import PatchPart
from .images.video_proof import videos_of
from .model_cache import run_with_cache, text_logits
from .module_replacement import replace_modules
from .named_tokens import check_named_tokens
from .original import decoder_role_of, replace_decoder_modules
from .proof import Findings
from .quantized_parts import UsedLinears, used_linears
from .recurrences import replace_recurrences
from .replaced_functions import ReplacedFunctions
from .roles.role import Role
from .rotary_function import replace_rotary
from .rotary_module import follow_lengths
from .static_text import StaticTextPart
from .text_of_images import text_model_of
from .token_kinds import choose_experts_in_graph
from .unused_attention import forget_unused_attention

VISION_FILE, EMBEDDING_FILE, TEXT_FILE = "vision.onnx", "embedding.onnx", "text.onnx"


class ProvenParts(NamedTuple):
    """The modules that become files, in their order.

    Attributes:
        parts: modules by names of files.
        findings: what was replaced in them.
        used: the linear layers of the text, before any was replaced, if they are quantised.
    """

    parts: dict[str, Any]
    findings: dict[str, Findings]
    used: UsedLinears | None


def role_of_text(module: nn.Module) -> tuple[str, Role[Any, Any]] | None:
    """Return the role that a module of the text may have: that of a decoder, or LayerNorm."""
    return role_of(module) if isinstance(module, nn.LayerNorm) else decoder_role_of(module)


def proven_parts(model: Any, images: ImagePart, quantised: bool, cache: str) -> ProvenParts:
    """Fuse attention and replace modules of all parts; prove the logits of the whole.

    ``quantised``: the linear layers of the text will be.
    """
    from .state_layers import report_convolutions

    text_model = text_model_of(model)
    embedding = EmbeddingPart(model, images.stacked)
    check_named_tokens(model, images, embedding)
    if isinstance(images, PatchPart):
        images.videos = videos_of(model, images, embedding)
    probe = ImageTextProbe(model, text_model, images, embedding)
    language = model.get_decoder()
    functions = ReplacedFunctions()
    choose_experts_in_graph(model, functions)
    of_vision, of_text = Findings(), Findings()
    used = None
    if quantised:
        used = used_linears(model, lambda _: (text_logits(text_model),), of_text)
    follow_lengths(model, of_text)
    # Before recurrences, whose operators have no derivatives by which modules are found.
    with functions.replaced():  # experts of images, too
        replace_decoder_modules(text_model, role_of_text, of_text)
    recurrences = replace_recurrences(text_model, run_with_cache, functions, of_text)
    text = TextPart(text_model, functions, recurrences, images, embedding)
    report_convolutions(text_model, run_with_cache, of_text)
    probe.check(images, embedding, text)
    image, example = images.example(), text.example()
    if images.obstacle is None:
        replace_modules(model, role_of, lambda _: (images(*image),), of_vision)
        if images.attends:
            if not fuse_attention(model, lambda _: images(*image), of_vision):
                of_vision.keep("", "attention", NOT_CALLED)
            forget_unused_attention(lambda: (images(*image),), of_vision)
    if not fuse_attention(model, lambda _: text(*example), of_text):
        of_text.keep("", "attention", NOT_CALLED)
    replace_rotary(language, lambda _: text(*example), functions, of_text)
    probe.check(images, embedding, text)
    written: Any = text
    if cache == StaticTextPart.cache:
        written = StaticTextPart(text)
        probe.check(images, embedding, written)
        nodes = 2 * len(text.cached.sizes)
        if nodes:
            of_text.replaced("npu_scatter_nd_update", 0.0, nodes=nodes)
    parts: dict[str, Any] = {EMBEDDING_FILE: embedding.eval(), TEXT_FILE: written.eval()}
    findings = {EMBEDDING_FILE: Findings(), TEXT_FILE: of_text}
    if images.obstacle is None:
        parts = {VISION_FILE: images.eval(), **parts}
        findings = {VISION_FILE: of_vision, **findings}
    return ProvenParts(parts, findings, used)
