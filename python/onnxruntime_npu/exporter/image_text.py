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
from .checkpoint import load_image_text, wrap
from .encoder import REPORT_FILE
from .image_states import reads_states
from .image_states_proof import proven_states
from .image_text_proof import EMBEDDING_FILE, TEXT_FILE, VISION_FILE, proven_parts
from .images import GivenFeatures, ImagePart, image_part_of, own_features
from .module_replacement import convert_weights
from .parts import save_companions, write_parts
from .parts_report import PartsReport
from .proof import NotProven, attempt, unsupported
from .quantization import NONE
from .quantized_parts import check_quant, quantize_parts
from .static_text import StaticTextPart
from .tracing import onnx_model_of

_CACHES = ("dynamic", StaticTextPart.cache)


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
    as in InstructBLIP, vision takes its tokens, qformer_input_ids [1, L] int64. Where layers of
    the text attend to images, as in Llama 3.2 Vision, docs/image_text.md has inputs and outputs.

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
    torch_library.register()
    images: ImagePart | None = None
    try:
        if own_features(model) is not None:
            images = image_part_of(model)
            proven = attempt(proven_parts, model, images, quant != NONE, cache)
        elif reads_states(model):
            if cache != "dynamic":
                raise NotProven("its text attends to images over a growing cache alone")
            proven = attempt(proven_states, model, quant != NONE)
        else:
            raise NotProven(
                "expected get_image_features, whose results take the places of tokens, got a model "
                "whose text reads images in another way"
            )
    except NotProven as error:
        raise unsupported(model, error) from error
    convert_weights(model, DTYPES[dtype])
    if proven.used is not None:
        quantize_parts(model, quant, [proven.used])
    models = {}
    for name, part in proven.parts.items():
        try:
            models[name] = onnx_model_of(part, part.example(), opset)
        except ExportError as error:
            if name != VISION_FILE or images is None:
                raise
            try:
                images = GivenFeatures(model, str(error))
            except NotProven:  # it takes more features than those of tokens
                raise error from None
    about_tokens = proven.parts[EMBEDDING_FILE].metadata()
    about_images = proven.parts[VISION_FILE].metadata() if images is None else images.metadata()
    models[EMBEDDING_FILE].metadata_props.update({**about_tokens, **about_images})
    with staged(out, TEXT_FILE) as folder:
        warnings = save_companions(folder, checkpoint, None if loaded else Path(model_or_dir))
        report = write_parts(
            folder,
            models,
            proven.findings,
            started,
            model=checkpoint.source,
            architecture=type(model).__name__,
            dtype=dtype,
            quant=quant,
            cache=cache,
            opset=opset,
        )
        if images is not None and images.obstacle is not None:
            warnings.append(
                f"{VISION_FILE} is not written, since features of images are not exported: "
                f"{images.obstacle}; give generate_from image_features [F, H] from elsewhere"
            )
        report.parts[TEXT_FILE].warnings += warnings
        report.write(folder / REPORT_FILE)
    return report
