"""An exported causal language model under transformers' ``generate`` and pipelines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..errors import ArgumentError
from ..generation.causal_lm import CausalLM
from ..generation.decoding import StepModel
from ..generation.prompts import checked_rows
from ..session.ortvalue import ortvalue_to_numpy
from .cache import NPUCache
from .exported_model import ExportedModel

# Of a call without a cache: the tokens that may follow in the one that it returns.
_MORE_TOKENS = 256


class NPUModelForCausalLM(ExportedModel, GenerationMixin):
    """A directory that ``export_causal_lm`` wrote, in the place of a model of transformers.

    ``generate`` is transformers' own: sampling, beams, processors, streamers. Assisted decoding is
    refused: an exported cache does not go back.
    """

    task = "text-generation"
    runner = CausalLM
    exported: CausalLM
    _is_stateful = False
    _supported_generation_modes = (
        GenerationMode.GREEDY_SEARCH,
        GenerationMode.SAMPLE,
        GenerationMode.BEAM_SEARCH,
        GenerationMode.BEAM_SAMPLE,
    )

    def __init__(self, exported: CausalLM) -> None:
        """Wrap an opened directory; ``from_pretrained`` opens one."""
        super().__init__(exported)
        if exported.generation_config:
            self.generation_config = GenerationConfig.from_pretrained(
                exported.directory, local_files_only=True
            )
        else:
            self.generation_config = GenerationConfig.from_model_config(self.config)

    @property
    def step_model(self) -> StepModel:
        """The opened model, of which an ``NPUCache`` is made."""
        return self.exported.step_model

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
        given, it has room for 256 tokens more than input_ids.
        """
        rows = self._rows(input_ids, attention_mask)
        columns = input_ids.shape[1]
        context = self.exported.context_length
        if past_key_values is None:
            past_key_values = NPUCache(self.step_model, min(columns + _MORE_TOKENS, context))
        elif not isinstance(past_key_values, NPUCache):
            raise ArgumentError(
                f"past_key_values expected an NPUCache, got {type(past_key_values).__name__}"
            )
        if past_key_values.get_seq_length() + columns > context:
            raise ArgumentError(
                f"expected at most {context} tokens, the model's context, got "
                f"{past_key_values.get_seq_length()} and {columns} more"
            )
        value = past_key_values.extend(rows, columns)
        logits = torch.from_numpy(np.array(ortvalue_to_numpy(value)[:, -1:], np.float32))
        if use_cache is None:
            use_cache = getattr(self.config, "use_cache", True)
        cache: Any = past_key_values if use_cache else None  # not a transformers.Cache
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
            new = attention_mask[:, -input_ids.shape[1] :]
            if attention_mask.dim() != 2 or new.shape != input_ids.shape:
                raise ArgumentError(
                    f"attention_mask expected [batch, total] of input_ids "
                    f"{list(input_ids.shape)}, got {list(attention_mask.shape)}"
                )
            rows = [
                [token for token, keep in zip(row, kept, strict=True) if keep]
                for row, kept in zip(rows, new.tolist(), strict=True)
            ]
        return checked_rows(rows, self.step_model.vocabulary)

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Add the cache to what ``generate`` passes to each step."""
        context = self.exported.context_length
        if max_cache_length >= context:
            raise ArgumentError(
                f"max_length expected at most {context}, the model's context, got "
                f"{max_cache_length + 1} tokens with those of the prompt"
            )
        if generation_config.cache_implementation is not None:
            raise ArgumentError(
                f"cache_implementation expected none, got "
                f"{generation_config.cache_implementation}: the cache is the exported one"
            )
        if generation_config.use_cache is False or model_kwargs.get("past_key_values") is not None:
            return
        model_kwargs["past_key_values"] = NPUCache(self.step_model, max_cache_length + 1)

    @contextlib.contextmanager
    def _optimize_model_for_decode(self) -> Iterator[None]:
        """Leave the model as it is."""
        yield

    def _valid_auto_compile_criteria(self, *arguments: Any, **options: Any) -> bool:
        """Return that there is nothing for torch to compile."""
        return False

    @classmethod
    def is_remote_code(cls) -> bool:
        """Whether the code comes with the model."""
        return False
