"""An exported causal language model under transformers' ``generate`` and pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import ArgumentError
from ..generation.causal_lm import CausalLM
from ..generation.decoding import StepModel
from ..generation.prompts import checked_rows, seen_tokens
from ..session.ortvalue import ortvalue_to_numpy
from .cache import NPUCache
from .generating_model import GeneratingModel

# Of a call without a cache: the tokens that may follow in the one that it returns.
_MORE_TOKENS = 256


class NPUModelForCausalLM(GeneratingModel):
    """A directory that ``export_causal_lm`` wrote, in the place of a model of transformers.

    ``generate`` is transformers' own: sampling, beams, processors, streamers.
    """

    task = "text-generation"
    runner = CausalLM
    exported: CausalLM

    @property
    def step_model(self) -> StepModel:
        """The opened model, of which an ``NPUCache`` is made."""
        return self.exported.step_model

    def new_cache(self, length: int) -> NPUCache:
        """Return an empty cache for rows of at most ``length`` tokens, padding included."""
        return NPUCache(self.step_model, length)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: NPUCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Run the model on new tokens.

        Args:
            input_ids: [B, S] integers.
            attention_mask: [B, total] of all tokens so far, 0 for padding; default: no padding.
            past_key_values: the cache of the tokens before, which is extended in place.
            use_cache: whether the result has the cache; default: as the configuration says.
            return_dict: False: a tuple instead of CausalLMOutputWithPast.

        Returns logits of each row's last token, float32 [B, 1, V], and the cache. Without one
        given, it has room for 256 tokens more than input_ids. Raises ArgumentError for inputs that
        do not fit each other, the cache or the model's context.
        """
        if past_key_values is not None:
            _check_cache(past_key_values, input_ids)
        rows = self._rows(input_ids, attention_mask)
        columns = input_ids.shape[1]
        context = self.exported.context_length
        if past_key_values is None:
            past_key_values = self.new_cache(min(columns + _MORE_TOKENS, context))
        if past_key_values.get_seq_length() + columns > context:
            raise ArgumentError(
                f"expected at most {context} tokens, the model's context, got "
                f"{past_key_values.get_seq_length()} and {columns} more"
            )
        value = past_key_values.extend(rows, columns)
        logits = torch.from_numpy(np.array(ortvalue_to_numpy(value)[:, -1:], np.float32))
        cache = self._kept(past_key_values, use_cache)
        output = CausalLMOutputWithPast(logits=logits, past_key_values=cache)
        return output.to_tuple() if return_dict is False else output

    def _rows(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> list[list[int]]:
        """Return the new tokens of each row without padding."""
        if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2:
            raise ArgumentError("input_ids expected a tensor [batch, sequence]")
        rows = input_ids.tolist()
        if attention_mask is not None:
            new = attention_mask[..., -input_ids.shape[1] :]
            if new.shape != input_ids.shape:
                raise ArgumentError(
                    f"attention_mask expected [batch, total] of input_ids "
                    f"{list(input_ids.shape)}, got {list(attention_mask.shape)}"
                )
            rows = seen_tokens(rows, new.tolist())
            if not all(rows):
                raise ArgumentError(
                    f"attention_mask expected a token of each row among the {new.shape[1]} new "
                    f"ones, got padding only in row {rows.index([])}: pass padded prompts whole, "
                    "without prefill_chunk_size"
                )
        return checked_rows(rows, self.step_model.vocabulary)


def _check_cache(cache: Any, input_ids: torch.Tensor) -> None:
    """Raise ArgumentError for a cache of another kind, and for one that has all tokens already."""
    if not isinstance(cache, NPUCache):
        raise ArgumentError(f"past_key_values expected an NPUCache, got {type(cache).__name__}")
    if cache.get_seq_length() and not input_ids.numel():
        raise ArgumentError(
            f"the cache has {cache.get_seq_length()} tokens, got none behind them: pass all tokens "
            "so far and new ones, or model.new_cache(length) for another conversation"
        )
