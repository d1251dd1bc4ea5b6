"""An exported encoder of text in the place of a model of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.utils import ModelOutput

from ..context_length import encoder_context
from ..errors import ArgumentError
from ..generation.exported import Exported
from .exported_model import ExportedModel


@dataclass
class EncoderOutput(ModelOutput):
    """What an exported encoder returns; None for what it does not have.

    last_hidden_state [B, S, H]; pooled, sentence_embedding [B, H] or pooler_output [B, P]; of a
    tower text_embeds or image_embeds [B, P]. All float32.
    """

    last_hidden_state: torch.Tensor | None = None
    sentence_embedding: torch.Tensor | None = None
    pooler_output: torch.Tensor | None = None
    text_embeds: torch.Tensor | None = None
    image_embeds: torch.Tensor | None = None


class ExportedEncoder(Exported):
    """The session of an encoder's directory."""

    _main = "model.onnx"

    def _load(self) -> None:
        self.session = self._open(self._main)
        # Most tokens of a text; None: there is no limit.
        self.context_length = encoder_context(self.report, self.config)
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        if "last_hidden_state" not in self.outputs:
            raise ArgumentError(f"{self.directory} was not made by export_encoder")


class NPUModelForFeatureExtraction(ExportedModel):
    """A directory that ``export_encoder`` wrote, for pipelines of features and for calls."""

    task = "feature-extraction"
    runner = ExportedEncoder
    exported: ExportedEncoder

    def forward(self, **inputs: torch.Tensor) -> EncoderOutput:
        """Run the encoder.

        ``inputs`` are those of the exported file: input_ids, attention_mask and token_type_ids
        [B, S] integers, or pixel_values or input_features of floats. attention_mask defaults to
        ones, token_type_ids to zeros. Raises ArgumentError for others.
        """
        ids = inputs.get("input_ids")
        if ids is not None:
            inputs.setdefault("attention_mask", torch.ones_like(ids))
            if "token_type_ids" in self.exported.inputs:
                inputs.setdefault("token_type_ids", torch.zeros_like(ids))
        if sorted(inputs) != sorted(self.exported.inputs):
            raise ArgumentError(
                f"expected {', '.join(self.exported.inputs)}, got {', '.join(inputs) or 'none'}"
            )
        arrays = {name: self._checked(name, tensor) for name, tensor in inputs.items()}
        if ids is not None:
            self._check_length(ids.shape[1])
        results: list[Any] = self.exported.session.run(self.exported.outputs, arrays)
        tensors = map(torch.from_numpy, results)
        return EncoderOutput(**dict(zip(self.exported.outputs, tensors, strict=True)))

    def _check_length(self, tokens: int) -> None:
        longest = self.exported.context_length
        if not tokens:
            raise ArgumentError("input_ids expected at least one token, got none")
        if longest is not None and tokens > longest:
            raise ArgumentError(
                f"input_ids expected at most {longest} tokens, the model's context, got {tokens}: "
                f"let the tokenizer cut texts (truncation=True, max_length={longest})"
            )

    def _checked(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        value = self.exported.inputs[name]
        whole = value.type == "tensor(int64)"
        array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else None
        if array is None or array.dtype.kind not in ("iub" if whole else "f"):
            kind = "whole numbers" if whole else "floats"
            raise ArgumentError(f"{name} expected a tensor of {kind}, got {tensor!r}")
        fixed = [n if isinstance(n, int) else None for n in value.shape]
        if array.ndim != len(fixed) or any(
            n not in (None, size) for n, size in zip(fixed, array.shape, strict=True)
        ):
            raise ArgumentError(f"{name} expected {value.shape}, got {list(array.shape)}")
        return np.ascontiguousarray(array, np.int64 if whole else np.float32)
