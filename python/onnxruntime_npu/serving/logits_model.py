"""The exported model as the lane that sees logits opens it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from ..generation.adapters import Adapters
from ..generation.decoding import StepModel
from ..generation.paged_cache import PagedCache
from ..npu.memory import empty_cache
from ..sampling import open_sampler
from ..session.provider_library import get_ep_name
from .token_texts import TokenTexts

_HOST_MEMORY = f"ep.{get_ep_name().lower()}.host_memory"


class CachedSteps(Protocol):
    """A model with a cache in blocks.

    Attributes:
        block_size: tokens of a block.
        vocabulary: number of logits.
    """

    block_size: int
    vocabulary: int

    def step(
        self,
        new: Sequence[np.ndarray],
        past: np.ndarray,
        table: np.ndarray,
        wanted: np.ndarray,
        adapter: str | None = None,
    ) -> np.ndarray:
        """Add tokens to rows, return logits after some: as ``PagedCache.step``.

        ``adapter`` is the name of the LoRA adapter of all rows; ArgumentError for one that cannot
        be read.
        """

    def forget(self, block: int) -> None:
        """Release the states of the row whose first block this is, if the model has any."""


class SessionSteps:
    """Steps of a session in this process."""

    def __init__(self, directory: Path, providers: Sequence[Any], blocks: int) -> None:
        """Open the model with a cache of so many blocks.

        Raises what onnxruntime raises, ArgumentError for a file that export did not write.
        """
        options = ort.SessionOptions()
        options.log_severity_level = 3
        model = StepModel(str(directory / "model.onnx"), options, providers, static=False)
        empty_cache()  # weights that were packed, found equal to those of the engine, and freed
        self.block_size, self.vocabulary = model.block_size, model.vocabulary
        self._adapters = Adapters(directory, model.session, (model.device, model.device_id))
        self._cache = PagedCache(model.session, model.new_blocks(blocks))
        self.forget = self._cache.forget

    def step(
        self,
        new: Sequence[np.ndarray],
        past: np.ndarray,
        table: np.ndarray,
        wanted: np.ndarray,
        adapter: str | None = None,
    ) -> np.ndarray:
        """Add tokens to rows, return logits after some: as ``CachedSteps.step``."""
        return self._cache.step(new, past, table, wanted, self._adapters.named(adapter))


class LogitsModel:
    """Steps with a cache as large as the engine's, and the texts of tokens.

    Attributes:
        block_count: blocks of the cache.
        block_size: tokens of a block.
        vocabulary: number of logits.
        stop_tokens: those that end an answer.
        most_rows: requests of a batch.
        texts: the tokens' texts; None if the tokenizer's tokens have no bytes of their own.
    """

    def __init__(
        self,
        directory: Path,
        settings: dict[str, Any],
        providers: Sequence[Any],
        open_steps: Callable[[int], CachedSteps],
    ) -> None:
        """Open the steps with a number of blocks; ``settings`` are genai_config.json's.

        ``providers`` draw tokens. Raises what ``open_steps`` raises.
        """
        self._directory, self._providers = directory, providers
        batching = settings["engine"]["dynamic_batching"]
        self.block_count, self.most_rows = batching["num_blocks"], batching["max_batch_size"]
        self._steps = open_steps(self.block_count)
        self.block_size, self.vocabulary = self._steps.block_size, self._steps.vocabulary
        stop = settings["model"].get("eos_token_id", [])
        self.stop_tokens = [stop] if isinstance(stop, int) else list(stop)
        try:
            self.texts: TokenTexts | None = TokenTexts(directory, self.vocabulary, self.stop_tokens)
        except ValueError:
            self.texts = None

    @functools.cached_property
    def sampling(self) -> ort.InferenceSession:
        """The session that draws tokens; ArgumentError for an export without it."""
        return open_sampler(self._directory, self._providers)

    def run(
        self,
        new: list[list[int]],
        past: list[int],
        blocks: list[list[int]],
        wanted: list[int],
        adapter: str | None,
    ) -> np.ndarray:
        """Add tokens to rows that have ``past`` ones in ``blocks``, by the same adapter.

        Returns logits after the tokens at ``wanted`` positions of all new ones, float32 [W, V].
        Raises ArgumentError for an adapter that cannot be read.
        """
        table = np.zeros((len(blocks), max(map(len, blocks))), np.int32)
        for row, given in zip(table, blocks, strict=True):
            row[: len(given)] = given
        return self._steps.step(
            [np.array(tokens, np.int64) for tokens in new],
            np.array(past, np.int32),
            table,
            np.array(wanted, np.int32),
            adapter,
        )

    def forget(self, blocks: list[int]) -> None:
        """Release what a row keeps beside its blocks."""
        self._steps.forget(blocks[0])


def open_logits_model(
    directory: Path, settings: dict[str, Any], provider: str, device: int
) -> LogitsModel:
    """Open a directory in this process; raises as ``SessionSteps``."""
    providers = providers_of(settings, provider, device)
    return LogitsModel(
        directory, settings, providers, lambda blocks: SessionSteps(directory, providers, blocks)
    )


def providers_of(settings: dict[str, Any], provider: str, device: int) -> list[Any]:
    """Return the provider, with values where the engine has them."""
    if provider != get_ep_name():
        return [provider]
    session = settings["model"]["decoder"].get("session_options", {})
    return [
        (provider, {"device_id": str(device), "host_memory": str(session.get(_HOST_MEMORY, "0"))})
    ]
