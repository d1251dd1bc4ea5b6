"""Exports a model that answers about an image: files for the image, the embeddings, the text."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ArgumentError, ExportError
from ..onnx_models.staging import staged
from ..opdef import torch_library
from .arguments import DTYPES, check_choice, check_directory, check_opset
from .attention_interface import NOT_CALLED, fuse_attention
from .checkpoint import load_image_text, wrap
from .encoder import REPORT_FILE, role_of
from .image_text_parts import EmbeddingPart, ImageTextProbe, TextPart
from .images import GivenFeatures, ImagePart, image_part_of, own_features
from .model_cache import run_with_cache, text_logits
from .module_replacement import convert_weights, replace_modules
from .named_tokens import check_named_tokens
from .original import decoder_role_of, replace_decoder_modules
from .parts import save_companions, write_parts
from .parts_report import PartsReport
from .proof import Findings, NotProven, attempt, unsupported
from .quantization import NONE
from .quantized_parts import UsedLinears, check_quant, quantize_parts, used_linears
from .recurrences import replace_recurrences
from .replaced_functions import ReplacedFunctions
from .roles.role import Role
from .rotary_function import replace_rotary
from .rotary_module import follow_lengths
from .static_text import StaticTextPart
from .text_of_images import text_model_of
from .token_kinds import choose_experts_in_graph
from .tracing import onnx_model_of
from .unused_attention import forget_unused_attention

# Of the file's metadata: the token in whose places features are put, those of a prompt that are of
# kind 1, and the kind of generated ones.
IMAGE_TOKEN, TOKENS, GENERATED = "image_token_id", "image_token_ids", "generated_kind"
_CACHES = ("dynamic", StaticTextPart.cache)
VISION_FILE, EMBEDDING_FILE, TEXT_FILE = "vision.onnx", "embedding.onnx", "text.onnx"


def export_image_text_to_text(
    model_or_dir: Any,
    out_dir: str | Path,
    *,
    dtype: str = "float32",
    quant: str = "none",
    cache: str = "dynamic",
    opset: int | None = None,
    tokenizer: Any | None = None,
) -> PartsReport:
    """Export a model of transformers that takes an image and text, with fused ``npu::`` operators.

    Writes ``vision.onnx``, ``embedding.onnx`` and ``text.onnx``, each with its ``.data``,
    ``sampler.onnx``, the tokenizer or processor and ``export_report.json``. The model's own forward
    pass is exported; attention, rotation, norms, MLPs and activations are replaced where that is
    proven. Where features of images cannot be exported or proven, ``vision.onnx`` is left out and
    a warning of the report says why: the text takes features that the caller has.

    Vision: pixel_values [1, channels, height, width] float32 of one image, of one size or of any,
    or [T, channels, height, width] of its T tiles with feature_places [F, N] int64, the features of
    all tiles, row by row, and last the new line, that a token has, and of a model that interpolates
    feature_weights [F, N] float32, to image_features [F, H] float32. Embedding: input_ids [B, S]
    int64 and image_features [F, H] of all images, in the order of their tokens, to inputs_embeds
    [B, S, H] float32; F may be 0. Text: inputs_embeds, attention_mask [B, T] and position_ids
    [B, S] int64, token_type_ids [B, T] int64 where tokens of an image or of a prompt see each other
    in both directions or have experts of their own, and past_key_values.N.key and .value
    [B, heads, T - S, D] to logits [B, 1, V] float32 of each row's last token and present.N.key and
    .value [B, heads, T, D]. With a static cache text takes sequence_lengths and total_lengths [B]
    int64 in the place of attention_mask and position_ids, and keys and values are
    [B, heads, C, D], of any capacity C. Layers that keep states instead, as in Qwen3.5, have
    past_key_values.N.conv_state and .recurrent_state [B, ..] and the same of present. Where the
    text's first layers take features of an image, too, as in Qwen3-VL, image_features and
    inputs_embeds have theirs after the H of a token.

    Of a model that takes patches, such as Qwen2-VL, vision takes pixel_values [P, values] or [P, C,
    height, width] float32, as the model does, and patch_positions [P, 2] int64, row and column, of
    the P patches of one image, and text position_ids [3, B, S]: time, row and column. Where
    attention stays within windows, as in Qwen2.5-VL, vision also takes patch_windows [W, L] int64,
    the patches of each window, and P where it reaches beyond the image. Of a model whose processor
    pads patches, such as LFM2-VL and Gemma 4, vision takes pixel_values and patch_positions, too,
    and text position_ids [B, S]. Where layers of the text have embeddings of tokens of their own,
    as in Gemma 4, they follow in inputs_embeds. Where an image is read for an instruction,
    as in InstructBLIP, vision takes its tokens, qformer_input_ids [1, L] int64.

    Args:
        model_or_dir: a directory with config.json and safetensors, or a loaded model such as
            LlavaForConditionalGeneration (left unchanged).
        out_dir: directory to write to; created if it does not exist.
        dtype: float32, float16 or bfloat16, of weights, activations and caches.
        quant: of the text's layers: none, or a scheme of
            ``onnxruntime_npu.converters.quantize_weights`` that needs no calibration: w8a16, w4a16
            and w4a8, with float16 or bfloat16, or w8a8_dynamic; vision, embedding and head stay as
            they are.
        cache: of the text: dynamic (past in, grown present out) or static (a preallocated buffer,
            updated in place when bound as input and output).
        opset: ONNX opset, 18 to 23; default 18.
        tokenizer: tokenizer or processor to write with a loaded model.

    Returns the reports of the files; ``gaps`` is empty if every replacement was exported as a
    node. Raises ArgumentError for bad arguments, ExportError for a model that cannot be exported.
    """
    started = time.monotonic()
    check_choice("dtype", dtype, tuple(DTYPES))
    check_quant(quant, DTYPES[dtype])
    if cache not in _CACHES:
        raise ArgumentError(
            f"expected cache to be one of {', '.join(_CACHES)}, got {cache!r}: blocks serve "
            f"continuous batching, and onnxruntime-genai's engine takes no images"
        )
    opset = check_opset(opset)
    out = check_directory(out_dir, model_or_dir)
    loaded = isinstance(model_or_dir, nn.Module)
    checkpoint = wrap(model_or_dir, tokenizer) if loaded else load_image_text(model_or_dir)
    model = copy.deepcopy(checkpoint.model) if loaded else checkpoint.model
    if not hasattr(model, "generate"):
        raise ExportError(
            f"cannot export {type(model).__name__}: expected a transformers model of images and "
            f"text with a language-model head, such as LlavaForConditionalGeneration"
        )
    if own_features(model) is None:
        raise ExportError(
            f"cannot export {type(model).__name__}: expected get_image_features, whose results "
            f"take the places of tokens, got a model whose text reads images in another way"
        )
    torch_library.register()
    try:
        images = image_part_of(model)
        parts, findings, used = attempt(_proven, model, images, quant != NONE, cache)
    except NotProven as error:
        raise unsupported(model, error) from error
    convert_weights(model, DTYPES[dtype])
    if used is not None:
        quantize_parts(model, quant, [used])
    models = {}
    for name, part in parts.items():
        try:
            models[name] = onnx_model_of(part, part.example(), opset)
        except ExportError as error:
            if name != VISION_FILE:
                raise
            try:
                images = GivenFeatures(model, str(error))
            except NotProven:  # it takes more features than those of tokens
                raise error from None
    kinds = parts[EMBEDDING_FILE].kinds
    models[EMBEDDING_FILE].metadata_props[IMAGE_TOKEN] = str(kinds.image_token)
    models[EMBEDDING_FILE].metadata_props[TOKENS] = " ".join(map(str, kinds.of_prompts))
    models[EMBEDDING_FILE].metadata_props[GENERATED] = str(kinds.generated)
    models[EMBEDDING_FILE].metadata_props.update(images.metadata())
    with staged(out, TEXT_FILE) as folder:
        warnings = save_companions(folder, checkpoint, None if loaded else Path(model_or_dir))
        report = write_parts(
            folder,
            models,
            findings,
            started,
            model=checkpoint.source,
            architecture=type(model).__name__,
            dtype=dtype,
            quant=quant,
            cache=cache,
            opset=opset,
        )
        if images.obstacle is not None:
            warnings.append(
                f"{VISION_FILE} is not written, since features of images are not exported: "
                f"{images.obstacle}; give generate_from image_features [F, H] from elsewhere"
            )
        report.parts[TEXT_FILE].warnings += warnings
        report.write(folder / REPORT_FILE)
    return report


def _role_of_text(module: nn.Module) -> tuple[str, Role[Any, Any]] | None:
    """Return the role that a module of the text may have: that of a decoder, or LayerNorm."""
    return role_of(module) if isinstance(module, nn.LayerNorm) else decoder_role_of(module)


def _proven(
    model: Any, images: ImagePart, quantised: bool, cache: str
) -> tuple[dict[str, Any], dict[str, Findings], UsedLinears | None]:
    """Fuse attention and replace modules of all parts; prove the logits of the whole.

    Returns also the linear layers of the text, before any was replaced, if they are ``quantised``.
    """
    from .state_layers import report_convolutions

    text_model = text_model_of(model)
    embedding = EmbeddingPart(model, images.stacked)
    check_named_tokens(model, images, embedding)
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
        replace_decoder_modules(text_model, _role_of_text, of_text)
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
    return parts, findings, used
