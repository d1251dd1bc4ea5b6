"""Exports an encoder-decoder model: a file for the encoder, one for a step of the decoder."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from ..onnx_models.staging import staged
from ..opdef import torch_library
from .arguments import DTYPES, check_choice, check_directory, check_opset
from .attention_interface import NOT_CALLED, fuse_attention
from .block_sparse import attend_to_all
from .checkpoint import load_seq2seq, wrap
from .encoder import REPORT_FILE, attends, role_of
from .encoder_decoder import DecoderPart, EncoderDecoderProbe, EncoderPart
from .module_replacement import Probe, convert_weights, replace_modules
from .parts import save_companions, write_parts
from .parts_report import PartsReport
from .proof import Findings, NotProven, attempt, unsupported
from .quantization import NONE
from .quantized_parts import UsedLinears, check_quant, quantize_parts, used_linears
from .roles.one_expert_mlp import check_experts, is_one_expert_mlp
from .roles.windowed_attention import keep_lengths
from .seq2seq_genai import write_genai_config
from .static_decoder import StaticDecoderPart
from .tracing import onnx_model_of

_PARTS: dict[str, type[DecoderPart]] = {"dynamic": DecoderPart, "static": StaticDecoderPart}
ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model.onnx"


def export_seq2seq(
    model_or_dir: Any,
    out_dir: str | Path,
    *,
    dtype: str = "float32",
    cache: str = "dynamic",
    quant: str = "none",
    opset: int | None = None,
    tokenizer: Any | None = None,
) -> PartsReport:
    """Export an encoder-decoder of transformers with fused ``npu::`` operators.

    Writes ``encoder_model.onnx`` and ``decoder_model.onnx``, each with its ``.data``,
    ``sampler.onnx``, the tokenizer or processor, of sound ``genai_config.json``, and
    ``export_report.json``. The model's own forward
    pass is exported; attention, norms and activations are replaced where that is proven.

    The encoder takes input_ids and attention_mask [B, P] int64, or input_features in float32, and
    returns last_hidden_state [B, P, H] in float32 and, for layer N of the decoder,
    present.N.encoder.key and .value [B, heads, P, D]. A step of the decoder takes input_ids [B, S]
    int64, encoder_attention_mask [B, P] int64 of a text, past_key_values.N.decoder.key and .value
    [B, heads, T - S, D] of its own past tokens, which may be none, and
    past_key_values.N.encoder.key and .value, what the encoder returned. It returns logits [B, S, V]
    in float32 and present.N.decoder.key and .value [B, heads, T, D].

    With a static cache those of own tokens are [B, heads, C, D], of any capacity C >= T, and bound
    as input and output; a step writes S slots of each. It takes cache_position [S] int64, too: the
    numbers of the new tokens, counted from 0.

    Args:
        model_or_dir: a directory with config.json and safetensors, or a loaded model such as
            T5ForConditionalGeneration or WhisperForConditionalGeneration (left unchanged).
        out_dir: directory to write to; created if it does not exist.
        dtype: float32, float16 or bfloat16, of weights, activations and caches.
        cache: of the decoder's own tokens: dynamic, which grows, or static, which is preallocated
            and updated in place. That of the source is computed once, with either.
        quant: none, or a scheme of ``onnxruntime_npu.converters.quantize_weights`` that needs no
            calibration: w8a16, w4a16 and w4a8, with float16 or bfloat16, or w8a8_dynamic; the head
            stays as it is.
        opset: ONNX opset, 18 to 23; default 18.
        tokenizer: tokenizer or processor to write with a loaded model.

    Returns the reports of both files; ``gaps`` is empty if every replacement was exported as a
    node. Raises ArgumentError for bad arguments, ExportError for a model that cannot be exported.
    """
    started = time.monotonic()
    check_choice("dtype", dtype, tuple(DTYPES))
    _check_cache(cache)
    check_quant(quant, DTYPES[dtype])
    opset = check_opset(opset)
    out = check_directory(out_dir, model_or_dir)
    loaded = isinstance(model_or_dir, nn.Module)
    checkpoint = wrap(model_or_dir, tokenizer) if loaded else load_seq2seq(model_or_dir)
    model = copy.deepcopy(checkpoint.model) if loaded else checkpoint.model
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or not hasattr(model, "generate"):
        raise ExportError(
            f"cannot export {type(model).__name__}: expected an encoder-decoder of transformers "
            f"with a language-model head"
        )
    torch_library.register()
    changed = attend_to_all(model)
    try:
        encoder, decoder, used = attempt(_proven, model, _PARTS[cache])
    except NotProven as error:
        raise unsupported(model, error) from error
    convert_weights(model, DTYPES[dtype])
    if quant != NONE:
        quantize_parts(model, quant, list(used.values()))
    with torch.no_grad():
        source = encoder.example()
        example = decoder.example(source, encoder(*source))
    models = {
        ENCODER_FILE: onnx_model_of(encoder, source, opset),
        DECODER_FILE: onnx_model_of(decoder, example, opset),
    }
    with staged(out, DECODER_FILE) as folder:
        warnings = save_companions(folder, checkpoint, None if loaded else Path(model_or_dir))
        left_out = write_genai_config(folder / "genai_config.json", encoder, decoder, tuple(models))
        warnings += [warning for warning in (changed, left_out) if warning]
        report = write_parts(
            folder,
            models,
            {name: linears.findings for name, linears in used.items()},
            started,
            model=checkpoint.source,
            architecture=type(model).__name__,
            dtype=dtype,
            quant=quant,
            opset=opset,
        )
        report.parts[DECODER_FILE].cache = cache
        report.parts[DECODER_FILE].warnings += warnings
        report.write(folder / REPORT_FILE)
    return report


def _fused(part: Any, probe: Probe, findings: Findings) -> bool:
    """Fuse attention that a part calls through transformers' interface; return whether it does."""
    if attends(findings):  # by roles, in the place of its own
        return False
    if fuse_attention(part, probe, findings):
        return True
    findings.keep("", "attention", NOT_CALLED)
    return False


def _check_cache(cache: str) -> None:
    """Raise ArgumentError for a cache that encoder-decoders do not have."""
    if cache == "paged":
        raise ArgumentError(
            "expected cache to be one of dynamic, static, got 'paged': blocks serve continuous "
            "batching, and onnxruntime-genai's engine has no encoder-decoders"
        )
    check_choice("cache", cache, tuple(_PARTS))


def _proven(
    model: Any, part: type[DecoderPart]
) -> tuple[EncoderPart, DecoderPart, dict[str, UsedLinears]]:
    """Fuse attention and replace modules of both parts; prove the logits of the whole."""
    for module in model.modules():
        if is_one_expert_mlp(module):
            check_experts(module)
    encoder = EncoderPart(model)
    vocabulary = model.get_output_embeddings().weight.shape[0]
    growing = DecoderPart(encoder, vocabulary)  # which needs no fused attention
    decoder = part(encoder, vocabulary)
    probe = EncoderDecoderProbe(encoder)
    source = encoder.example()
    encoded = encoder(*source)
    example = growing.example(source, encoded)
    of_encoder, of_decoder = Findings(), Findings()

    def encode(_model: Any) -> Any:
        return encoder(*source)

    def decode(_model: Any) -> Any:
        return growing(*example)

    used = {
        ENCODER_FILE: used_linears(model, encode, of_encoder),
        DECODER_FILE: used_linears(model, decode, of_decoder),
    }
    replace_modules(model, role_of, encode, of_encoder)
    replace_modules(model, role_of, decode, of_decoder)
    probe.check(encoder, growing)
    keep_lengths(model)
    if not _fused(model.get_encoder(), lambda _: encoder.encoder(*source), of_encoder):
        encoder.encoder.attends_as = model.get_encoder().config._attn_implementation
    stepped = decoder.example(source, encoded)
    _fused(model.get_decoder(), lambda _: decoder(*stepped), of_decoder)
    probe.check(encoder, decoder)
    return encoder.eval(), decoder.eval(), used
