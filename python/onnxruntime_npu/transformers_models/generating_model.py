"""What transformers' ``generate`` expects of a model, for exported ones that make text."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.configuration_utils import GenerationMode

from ..errors import ArgumentError
from ..generation.exported import Exported
from .exported_model import ExportedModel


class GeneratingModel(ExportedModel, GenerationMixin):
    """Base of models whose ``generate`` is transformers' own.

    Assisted decoding is refused: an exported cache does not go back.
    """

    exported: Any  # with a context_length
    _is_stateful = False
    _supported_generation_modes = (
        GenerationMode.GREEDY_SEARCH,
        GenerationMode.SAMPLE,
        GenerationMode.BEAM_SEARCH,
        GenerationMode.BEAM_SAMPLE,
    )

    def __init__(self, exported: Exported) -> None:
        """Wrap an opened directory; ``from_pretrained`` opens one."""
        super().__init__(exported)
        if exported.generation_config:
            self.generation_config = GenerationConfig.from_pretrained(
                exported.directory, local_files_only=True
            )
        else:
            self.generation_config = GenerationConfig.from_model_config(self.config)

    @abstractmethod
    def new_cache(self, length: int) -> Any:
        """Return an empty cache for rows of at most ``length`` tokens, padding included."""

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: torch.Tensor, **kwargs: Any
    ) -> Any:
        """Return what a step passes to the model, without the tokenizer of stop strings.

        ``generate`` passes that on to ``forward``, where models of transformers drop what they do
        not know.
        """
        kwargs.pop("tokenizer", None)
        return super().prepare_inputs_for_generation(input_ids, **kwargs)  # type: ignore[misc, arg-type]

    def _validate_generation_mode(self, generation_mode: GenerationMode, *given: Any) -> None:
        """Refuse assisted decoding in the words of who asked for it."""
        if generation_mode == GenerationMode.ASSISTED_GENERATION:
            raise ArgumentError(
                "expected no assistant_model and prompt_lookup_num_tokens, got one of them: an "
                "exported cache does not go back. Leave it out; CausalLM.generate has "
                "prompt_lookup_num_tokens for models exported with cache='paged'"
            )
        super()._validate_generation_mode(generation_mode, *given)  # type: ignore[misc]

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
        for name in ("output_attentions", "output_hidden_states"):
            if getattr(generation_config, name):
                raise ArgumentError(f"{name} expected false: an exported model has logits only")
        if generation_config.use_cache is False or model_kwargs.get("past_key_values") is not None:
            return
        model_kwargs["past_key_values"] = self.new_cache(max_cache_length + 1)

    def _kept(self, cache: Any, use_cache: bool | None) -> Any:
        """Return the cache for the result of a call, or None if none is wanted.

        ``use_cache``: None: as the configuration says.
        """
        wanted = getattr(self.config, "use_cache", True) if use_cache is None else use_cache
        return cache if wanted else None

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
