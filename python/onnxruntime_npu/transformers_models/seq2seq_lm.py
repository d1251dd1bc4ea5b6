"""An exported encoder-decoder under transformers' ``generate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils import ModelOutput

from ..errors import ArgumentError
from ..generation.prompts import checked_rows
from ..generation.seq2seq import Seq2SeqLM
from ..session.ortvalue import ortvalue_to_numpy
from .generating_model import GeneratingModel
from .seq2seq_cache import Seq2SeqCache

_MORE_TOKENS = 256  # that a preallocated cache takes after those of the call that begins it


@dataclass
class SourceOutput(ModelOutput):
    """What the encoder returns: last_hidden_state float32 [B, S, H], and what the decoder needs.

    ``values`` are keys and values of the batch on the device, by the decoder's names of them,
    ``attention_mask`` [B, P] is that of the source, of models that take one.
    """

    last_hidden_state: torch.Tensor | None = None
    values: Any = None
    attention_mask: torch.Tensor | None = None


class ExportedEncoderPart:
    """The encoder, as ``get_encoder`` of a model of transformers returns it."""

    def __init__(self, exported: Seq2SeqLM, main_input_name: str) -> None:
        self._exported = exported
        self.main_input_name = main_input_name

    def __call__(self, **inputs: Any) -> SourceOutput:
        """Run ``forward``."""
        return self.forward(**inputs)

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_features: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> SourceOutput:
        """Encode input_ids or input_features; attention_mask [B, P] is by default ones.

        ``kwargs`` are what ``generate`` passes to any encoder, such as return_dict.
        """
        del kwargs
        exported = self._exported
        source = input_features if input_ids is None else input_ids
        if attention_mask is None and source is not None:
            attention_mask = torch.ones(source.shape[:2], dtype=torch.int64)
        every = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "input_features": input_features,
        }
        # Encoders of sound of one length, as Whisper's, attend to all of it.
        given = {name: every.get(name) for name in exported.encoder_inputs}
        arrays = exported.checked_inputs(
            {name: tensor.cpu().numpy() for name, tensor in given.items() if tensor is not None}
        )
        hidden, values = exported.encode(arrays)
        state = torch.from_numpy(np.array(ortvalue_to_numpy(hidden), np.float32))
        mask = given.get("attention_mask")
        return SourceOutput(last_hidden_state=state, values=values, attention_mask=mask)


class NPUModelForSeq2SeqLM(GeneratingModel):
    """A directory that ``export_seq2seq`` wrote, in the place of a model of transformers.

    ``generate`` is transformers' own, beams included; of Whisper it is that of other models, whose
    prompt is ``decoder_input_ids``, without timestamps and long sound.
    """

    runner = Seq2SeqLM
    exported: Seq2SeqLM

    def __init__(self, exported: Seq2SeqLM) -> None:
        """Wrap an opened directory; ``from_pretrained`` opens one."""
        super().__init__(exported)
        self.main_input_name = exported.encoder_inputs[0]
        self.encoder = ExportedEncoderPart(exported, self.main_input_name)

    def get_encoder(self, modality: str | None = None) -> ExportedEncoderPart:
        """Return the encoder."""
        del modality  # it has one
        return self.encoder

    def new_cache(self, length: int) -> Seq2SeqCache:
        """Return an empty cache for decoder rows of at most ``length`` tokens."""
        return Seq2SeqCache(self.exported, length)

    def _default_length(self, tokens: int) -> int:
        """Return how many tokens a cache takes that a call of ``tokens`` begins."""
        context = self.exported.context_length
        return min(tokens + _MORE_TOKENS, context) if self.exported.static else context

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: SourceOutput | None = None,
        past_key_values: Seq2SeqCache | None = None,
        input_features: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Run the decoder on new tokens, and the encoder unless it has run.

        Args:
            input_ids: of the source, [B, S] integers; or ``input_features``.
            attention_mask: of the source, [B, S], 0 for padding; default: no padding.
            decoder_input_ids: new tokens [B, T].
            encoder_outputs: what ``get_encoder()`` returned.
            past_key_values: the cache of the decoder's tokens before, extended in place. Without
                one, a static cache for 256 tokens more is begun.
            input_features: of sound.
            decoder_attention_mask: ones: rows of the decoder have no padding.
            use_cache: whether the result has the cache; default: as the configuration says.
            return_dict: False: a tuple instead of Seq2SeqLMOutput.

        Returns logits float32 [B, T, V], the cache, and the encoder's last hidden state. Raises
        ArgumentError for inputs that do not fit each other, the cache or the decoder's context.
        """
        if not isinstance(decoder_input_ids, torch.Tensor) or decoder_input_ids.dim() != 2:
            raise ArgumentError("decoder_input_ids expected a tensor [batch, tokens]")
        if decoder_attention_mask is not None and not bool((decoder_attention_mask == 1).all()):
            raise ArgumentError("decoder_attention_mask expected ones: its rows have no padding")
        if past_key_values is not None and not isinstance(past_key_values, Seq2SeqCache):
            raise ArgumentError(
                f"past_key_values expected new_cache(length), got {type(past_key_values).__name__}"
            )
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids=input_ids, attention_mask=attention_mask, input_features=input_features
            )
        elif not isinstance(encoder_outputs, SourceOutput):
            raise ArgumentError("encoder_outputs expected what get_encoder() of this model returns")
        rows = checked_rows(decoder_input_ids.tolist(), self.exported.vocabulary)
        cache = past_key_values or self.new_cache(self._default_length(decoder_input_ids.shape[1]))
        given = encoder_outputs.attention_mask if attention_mask is None else attention_mask
        mask = None if given is None else given.cpu().long().numpy()
        value = cache.step(np.array(rows, np.int64), mask, encoder_outputs.values)
        output = Seq2SeqLMOutput(
            logits=torch.from_numpy(np.array(ortvalue_to_numpy(value), np.float32)),
            past_key_values=self._kept(cache, use_cache),
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
        )
        return output.to_tuple() if return_dict is False else output
