"""Exports an encoder of text, images or sound, with the pooling that makes embeddings of it."""

from __future__ import annotations

import copy
import inspect
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..context_length import encoder_context
from ..errors import ArgumentError, ExportError
from ..onnx_models.staging import staged
from ..opdef import torch_library
from .arguments import DTYPES, check_choice, check_directory, check_opset
from .attention_interface import NOT_CALLED, fuse_attention
from .block_sparse import attend_to_all
from .checkpoint import Checkpoint, load_encoder, wrap
from .module_replacement import convert_weights, replace_modules
from .pooling import POOLINGS, Pooling, asked_for
from .position_tables import positions_of
from .proof import Findings, NotProven, attempt, compare, unsupported
from .quantization import NONE
from .quantized_parts import UsedLinears, check_quant, quantize_parts, used_linears
from .report import ExportReport
from .roles.activation import ActivationRole, is_activation
from .roles.layer_norm import LayerNormRole
from .roles.mlp import MlpRole
from .roles.norm import NormRole
from .roles.one_expert_mlp import OneExpertMlpRole, is_one_expert_mlp
from .roles.projected_mlp import ProjectedMlpRole, is_projected_mlp
from .roles.role import Role
from .roles.time_first_attention import TimeFirstAttentionRole, is_time_first_attention
from .roles.windowed_attention import WindowedAttentionRole, is_windowed_attention, keep_lengths
from .towers import TOWERS, Tower, tower_of
from .tracing import finish, onnx_model_of

MODEL_FILE = "model.onnx"
REPORT_FILE = "export_report.json"
_TEXT = "input_ids"
_COMPANIONS = ("preprocessor_config.json", "processor_config.json", "chat_template.json")
_BATCH, _SEQUENCE = 2, 7  # sizes to trace with: neither 0 nor 1, which torch would keep
_FRAMES, _PADDED_FRAMES = 27, 6  # of sound; convolutions make a position of several
_BINS = "input_feat_per_channel"


def export_encoder(
    model_or_dir: Any,
    out_dir: str | Path,
    *,
    dtype: str = "float32",
    pooling: str = "auto",
    normalize: bool | None = None,
    opset: int | None = None,
    tokenizer: Any | None = None,
    tower: str | None = None,
    quant: str = "none",
) -> ExportReport:
    """Export an encoder of transformers with fused ``npu::`` operators.

    Writes ``model.onnx`` with ``model.onnx.data``, the tokenizer and ``export_report.json``. The
    model's own forward pass is exported; attention, norms and activations are replaced where that
    is proven. Inputs are input_ids [B, S], attention_mask [B, S] and, where the model tells
    segments apart, token_type_ids [B, S], all int64; or pixel_values or input_features in float32.
    Outputs, in float32: last_hidden_state [B, S, H] and, pooled, sentence_embedding [B, H], or
    pooler_output [B, P] of the model's own pooler; of a tower text_embeds or image_embeds [B, P].

    Args:
        model_or_dir: a directory with config.json and safetensors, or a loaded encoder such as
            BertModel or CLIPVisionModel (which is left unchanged).
        out_dir: directory to write to; created if it does not exist.
        dtype: float32, float16 or bfloat16, of weights and activations.
        pooling: none, mean, cls, max or lasttoken of the tokens that attention_mask shows; pooler,
            the model's own; auto: what the directory's sentence-transformers files ask for, else
            mean for text and none for others.
        normalize: give vectors length 1; None: as the directory asks with pooling auto, else no.
        opset: ONNX opset, 18 to 23; default 18.
        tokenizer: tokenizer to write with a loaded model.
        tower: text or image, of a model such as CLIPModel or SiglipModel that has both. With
            pooling auto its projected features are the second output.
        quant: none, or a scheme of ``onnxruntime_npu.converters.quantize_weights`` that needs no
            calibration: w8a16, w4a16 and w4a8, with float16 or bfloat16, or w8a8_dynamic.

    Returns the report; ``report.gaps`` is empty if every replacement was exported as a node.
    Raises ArgumentError for bad arguments, ExportError for a model that cannot be exported.
    """
    started = time.monotonic()
    check_choice("dtype", dtype, tuple(DTYPES))
    check_choice("pooling", pooling, POOLINGS)
    check_quant(quant, DTYPES[dtype])
    if tower is not None:
        check_choice("tower", tower, TOWERS)
    opset = check_opset(opset)
    out = check_directory(out_dir, model_or_dir)
    loaded = isinstance(model_or_dir, nn.Module)
    checkpoint = wrap(model_or_dir, tokenizer) if loaded else load_encoder(model_or_dir)
    model = copy.deepcopy(checkpoint.model) if loaded else checkpoint.model
    source = None if loaded else Path(model_or_dir)
    if not hasattr(getattr(model, "config", None), "model_type"):
        raise ExportError(
            f"cannot export {type(model).__name__}: expected an encoder of transformers"
        )
    torch_library.register()
    exported = tower_of(model, tower)
    changed = attend_to_all(exported)
    chosen = _pooling(exported, pooling, normalize, source)
    encoder = Encoder(exported, chosen)
    try:
        context = attempt(encoder.context) if encoder.is_text else None
        findings, used = _fuse(encoder)
    except NotProven as error:
        raise unsupported(model, error) from error
    convert_weights(model, DTYPES[dtype])
    if quant != NONE:
        quantize_parts(exported, quant, [used])
    report = ExportReport(
        model=checkpoint.source,
        architecture=type(model).__name__,
        dtype=dtype,
        opset=opset,
        quant=quant,
        pooling=chosen.mode + (", length 1" if chosen.normalize else ""),
        context_length=context,
        warnings=[*checkpoint.warnings, *([changed] if changed else [])],
    )
    onnx_model = onnx_model_of(encoder, encoder.example(), opset, longest=context or 0)
    if isinstance(exported, Tower):
        onnx_model.metadata_props.update(exported.metadata())
    with staged(out, MODEL_FILE) as folder:
        _save_companions(folder, model, checkpoint, source, report)
        finish(onnx_model, folder / MODEL_FILE, report, findings)
        report.exported(started)
        report.write(folder / REPORT_FILE)
    return report


def _pooling(model: Any, pooling: str, normalize: bool | None, source: Path | None) -> Pooling:
    if pooling != "auto":
        chosen = Pooling(pooling, normalize=False)
    elif isinstance(model, Tower):
        chosen = Pooling("pooler", normalize=False)
    elif main_input_of(model) == _TEXT:
        chosen = asked_for(source)
    else:
        chosen = Pooling("none", normalize=False)
    if normalize and chosen.mode == "none":
        raise ArgumentError("expected a pooling to normalize, got none")
    return chosen if normalize is None else Pooling(chosen.mode, normalize=normalize)


def main_input_of(model: Any) -> str:
    """Return the name of the input that has texts, images or sound.

    Towers inside of other models may inherit a name that is none of their arguments.
    """
    name = str(model.main_input_name)
    arguments = inspect.signature(model.forward).parameters.values()
    named = [each.name for each in arguments if each.kind is each.POSITIONAL_OR_KEYWORD]
    return named[0] if named and name not in named else name


class Encoder(nn.Module):
    """A transformers encoder with the inputs and outputs of the exported file."""

    def __init__(self, model: Any, pooling: Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.main_input = main_input_of(model)
        self.is_text = self.main_input == _TEXT
        self._arguments = set(inspect.signature(model.forward).parameters)
        # Sound of any length, as Speech2Text takes it; Whisper's has one length.
        self.is_framed = hasattr(model.config, _BINS) and "attention_mask" in self._arguments
        self.is_masked = self.is_text or self.is_framed  # whether rows may be padded
        # The implementation of attention whose masks it takes, where a decoder that shares its
        # configuration has another one.
        self.attends_as: str | None = None
        self.output_type: Any = None  # of the model's results, after a run

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        if not self.is_text:
            return [self.main_input, *(["attention_mask"] if self.is_framed else [])]
        segments = getattr(self.model.config, "type_vocab_size", 0) or 0
        told_apart = segments > 1 and "token_type_ids" in self._arguments
        return [_TEXT, "attention_mask", *(["token_type_ids"] if told_apart else [])]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        pooler = getattr(self.model, "embedding_name", "pooler_output")
        names = {"none": [], "pooler": [pooler]}
        return ["last_hidden_state", *names.get(self.pooling.mode, ["sentence_embedding"])]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs for inputs in the order of their names."""
        result = self._result(*inputs)
        hidden = result.last_hidden_state
        if self.pooling.mode == "none":
            return (hidden.float(),)
        if self.pooling.mode == "pooler":
            pooled = getattr(result, "pooler_output", None)
            if pooled is None:
                raise NotProven("pooling 'pooler' needs a model with a pooler and its weights")
            return hidden.float(), self.pooling.normalized(pooled.float())
        if self.is_framed:
            raise NotProven("expected pooling none: positions of frames are fewer than the mask's")
        return hidden.float(), self.pooling(hidden, inputs[1] if self.is_text else None)

    def hidden(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return last_hidden_state [B, S, H] in the model's dtype."""
        return self._result(*inputs).last_hidden_state

    def _result(self, *inputs: torch.Tensor) -> Any:
        given = dict(zip(self.input_names, inputs, strict=True))
        if not self.is_text:
            weight = next(p for p in self.model.parameters() if p.is_floating_point())
            given[self.main_input] = given[self.main_input].to(weight.dtype)
        config = self.model.config
        before = config._attn_implementation
        config._attn_implementation = self.attends_as or before
        try:
            result = self.model(**given)
        finally:
            config._attn_implementation = before
        self.output_type = type(result)
        return result

    def context(self) -> int | None:
        """Return the most tokens of a text, or None if there is no limit.

        RoBERTa and its kin number tokens from the row behind that of padding: their tables have
        fewer positions than rows, which is what their configuration gives.
        """

        def run(ids: torch.Tensor) -> None:
            self(*(ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(self.input_names)])

        named = encoder_context({}, self.model.config.to_dict())
        limits = [n for n in (named, positions_of(self.model, run)) if n is not None]
        return min(limits, default=None)

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with; the last row of a text is padded."""
        generator = torch.Generator().manual_seed(3)
        if not self.is_text:
            given = torch.randn(self._input_shape(), generator=generator)
            if not self.is_framed:
                return (given,)
            mask = torch.ones(given.shape[:2], dtype=torch.int64)
            mask[-1, -_PADDED_FRAMES:] = 0
            return given, mask
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        ids = torch.randint(0, vocabulary, (_BATCH, _SEQUENCE), generator=generator)
        mask = torch.ones_like(ids)
        mask[-1, -2:] = 0
        return (ids, mask, torch.zeros_like(ids))[: len(self.input_names)]

    def _input_shape(self) -> tuple[int, ...]:
        config = self.model.config
        if self.is_framed:
            return _BATCH, _FRAMES, config.input_feat_per_channel * config.input_channels
        if self.main_input == "pixel_values":
            size = self._configured("image_size")
            height, width = size if isinstance(size, (list, tuple)) else (size, size)
            return _BATCH, config.num_channels, height, width
        if self.main_input == "input_features" and hasattr(config, "max_source_positions"):
            convolved = 2  # frames for a position of Whisper's encoder
            return _BATCH, self._configured("num_mel_bins"), convolved * config.max_source_positions
        raise NotProven(f"expected input_ids, pixel_values or input_features: {self.main_input}")

    def _configured(self, name: str) -> Any:
        found = getattr(self.model.config, name, None)
        if found is None:
            raise NotProven(f"expected {name} in its configuration, which the file's input has")
        return found

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        with torch.no_grad():
            outputs = self(*self.example())
        shapes: dict[str, tuple[str | int, ...]] = {}
        for name, tensor in zip(self.input_names, self.example(), strict=True):
            sizes: tuple[str | int, ...] = tuple(tensor.shape[1:])
            if self.is_masked:
                sizes = ("sequence" if self.is_text else "frames", *sizes[1:])
            shapes[name] = ("batch", *sizes)
        for name, tensor in zip(self.output_names, outputs, strict=True):
            shapes[name] = ("batch", *tensor.shape[1:])
        if self.is_masked:
            shapes["last_hidden_state"] = ("batch", "sequence", outputs[0].shape[-1])
        return shapes


def _fuse(encoder: Encoder) -> tuple[Findings, UsedLinears]:
    """Fuse attention and replace modules of the encoder; prove the outputs of the whole."""
    example = attempt(encoder.example)
    expected = [tensor.clone() for tensor in attempt(encoder, *example)]
    findings = Findings()

    def probe(_model: Any) -> Any:
        return encoder(*example)

    used = used_linears(encoder.model, probe, findings)
    replace_modules(encoder.model, role_of, probe, findings)
    keep_lengths(encoder.model)
    if not attends(findings) and not fuse_attention(encoder.model, probe, findings):
        findings.keep("", "attention", NOT_CALLED)
    shown = example[1].bool() if encoder.is_text else torch.ones(expected[0].shape[:2]).bool()
    for name, before, after in zip(
        encoder.output_names, expected, attempt(encoder, *example), strict=True
    ):
        per_token = name == "last_hidden_state" and encoder.is_text
        compare(before[shown] if per_token else before, after[shown] if per_token else after, name)
    return findings, used


def attends(findings: Findings) -> bool:
    """Whether a role replaced attention, or says why not."""
    kept = any(each["role"] == "attention" for each in findings.kept)
    return kept or "npu_fusion_attention" in findings.expected_nodes


def role_of(module: nn.Module) -> tuple[str, Role[Any, Any]] | None:
    """Return the role that a module may have by its parts."""
    if isinstance(module, nn.LayerNorm):
        return "norm", LayerNormRole()
    if is_activation(module):
        return "activation", ActivationRole()
    if is_one_expert_mlp(module):
        return "experts", OneExpertMlpRole()
    if is_windowed_attention(module):
        return "attention", WindowedAttentionRole()
    if is_time_first_attention(module):
        return "attention", TimeFirstAttentionRole()
    if is_projected_mlp(module):
        return "mlp", ProjectedMlpRole()
    if hasattr(module, "down_proj"):
        return "mlp", MlpRole()
    weight = getattr(module, "weight", None)
    named = "norm" in type(module).__name__.lower() and not isinstance(module, _BatchNorm)
    if getattr(weight, "ndim", 0) == 1 and named:
        return "norm", NormRole(adds_residual=False)
    return None


def _save_companions(
    out: Path, model: Any, checkpoint: Checkpoint, source: Path | None, report: ExportReport
) -> None:
    """Write the files that a runner needs in addition to the model."""
    model.config.save_pretrained(out)
    if checkpoint.tokenizer is not None:
        checkpoint.tokenizer.save_pretrained(out)
    elif main_input_of(model) == _TEXT:
        report.warnings.append(checkpoint.without_tokenizer)
    copy_processor(source, out)


def copy_processor(source: Path | None, out: Path) -> None:
    """Copy the settings by which images and sound are prepared."""
    for name in _COMPANIONS:
        if source is not None and (source / name).is_file():
            shutil.copyfile(source / name, out / name)
