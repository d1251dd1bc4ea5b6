"""The model's inputs and outputs for a kind of cache, as a module that torch.export can trace.

Tensor names are those that onnxruntime-genai expects; dimension names are written into the file for
readers and for memory planning. Shape symbols are those of the roles package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .step import CacheSizes, LayerCache, State, compressed_causal_mask

# Sizes to trace with: all different, and not 0 or 1, which torch would treat as constants.
BATCH, PAST, NEW, CAPACITY = 2, 3, 5, 11


class Interface(nn.Module):
    """A decoder with the inputs and outputs of one kind of cache."""

    cache: str
    leading_inputs: tuple[str, ...]
    scales_beside = True  # of an int8 cache, in tensors of their own
    takes_lengths = False  # of rows or sequences; attention then gets one mask for all lengths
    causal_mask: torch.Tensor

    def __init__(self, decoder: Any, logits: str, *, int8: bool = False) -> None:
        """Take the decoder; ``int8``: the cache holds int8, with scales."""
        super().__init__()
        self.decoder = decoder  # Decoder or OriginalDecoder
        self.last_only = logits == "last"
        self.int8 = int8
        if self.takes_lengths:
            self.register_buffer("causal_mask", compressed_causal_mask())

    @property
    def layer_count(self) -> int:
        """Number of decoder layers."""
        return self.decoder.layer_count

    def cached_kinds(self, sizes: CacheSizes) -> list[str]:
        """Return what a layer caches, in the order of LayerCache."""
        cached = {
            "key": True,
            "value": True,
            "key_scale": self.int8 and self.scales_beside,
            "value_scale": self.int8 and self.scales_beside and "value" in sizes.rounded,
            "index_key": sizes.index_key > 0,
        }
        return [kind for kind in LayerCache._fields if cached[kind]]

    def _cache_names(self, prefix: str) -> list[str]:
        layers = zip(self.decoder.cached_layers, self.decoder.cache_sizes, strict=True)
        return [f"{prefix}.{i}.{kind}" for i, sizes in layers for kind in self.cached_kinds(sizes)]

    def _state_names(self, prefix: str) -> list[str]:
        return [f"{prefix}.{state.name}" for state in self.decoder.states]

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        past = "past_key_values"
        return [*self.leading_inputs, *self._cache_names(past), *self._state_names(past)]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["logits", *self._cache_names("present"), *self._state_names("present")]

    def empty_caches(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed keys and values of every layer, [batch, Nkv, length, D], scales, states."""
        return [*self._zeros(batch, length), *self._zero_states(batch, length)]

    def _zeros(self, rows: int, tokens: int) -> list[torch.Tensor]:
        return [
            torch.zeros(shape, dtype=self._dtype(sizes, kind))
            for sizes in self.decoder.cache_sizes
            for kind, shape in self._shapes_of_layer(sizes, rows, tokens).items()
        ]

    def _dtype(self, sizes: CacheSizes, kind: str) -> torch.dtype:
        """Return the dtype of what a layer caches of this kind."""
        if kind.endswith("scale"):
            return torch.float32
        floats: torch.dtype = self.decoder.dtype
        return torch.int8 if self.int8 and kind in sizes.rounded else floats

    def _zero_states(self, rows: int, tokens: int) -> list[torch.Tensor]:
        """Return states; those with a rate have entries enough, of unlike numbers."""
        floats = self.decoder.dtype
        return [
            torch.zeros(
                self._rows_of_state(state, rows, tokens and tokens + state.rate - 1),
                dtype=state.dtype(floats),
            )
            for state in self.decoder.states
        ]

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        raise NotImplementedError

    def prompt(self, input_ids: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments for input_ids [1, S] without a past."""
        raise NotImplementedError

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        raise NotImplementedError

    def _shapes_of_layer(
        self, sizes: CacheSizes, rows: Any, tokens: Any
    ) -> dict[str, tuple[Any, ...]]:
        """Return the shape of each of ``cached_kinds``."""
        shapes = {
            "key": self._vectors(rows, sizes.heads, tokens, sizes.key),
            "value": self._vectors(rows, sizes.heads, tokens, sizes.value),
            "key_scale": (rows, sizes.heads, tokens),
            "value_scale": (rows, sizes.heads, tokens),
            "index_key": self._vectors(rows, 1, tokens, sizes.index_key),
        }
        return {kind: shapes[kind] for kind in self.cached_kinds(sizes)}

    def stored(self, sizes: CacheSizes) -> CacheSizes:
        """Return the elements that a cache has for the keys and values of these sizes."""
        return sizes

    def _vectors(self, rows: Any, heads: int, tokens: Any, size: int) -> tuple[Any, ...]:
        """Return the shape of vectors of tokens."""
        return rows, heads, tokens, size

    def _cache_shapes(self, prefix: str, rows: Any, tokens: Any) -> dict[str, tuple[Any, ...]]:
        """Return the shape of the cache of every layer by its name."""
        shapes = [
            shape
            for sizes in self.decoder.cache_sizes
            for shape in self._shapes_of_layer(sizes, rows, tokens).values()
        ]
        return dict(zip(self._cache_names(prefix), shapes, strict=True))

    def _state_shapes(self, prefix: str, rows: Any) -> dict[str, tuple[Any, ...]]:
        """Return the shape of every state by its name."""
        names = self._state_names(prefix)
        before = prefix.startswith("past")
        past, tokens = ("past_", "past") if before else ("", "total")

        def entries(state: State) -> str:
            return tokens if state.rate == 1 else f"{past}entries_of_{state.rate}"

        shapes = [self._rows_of_state(state, rows, entries(state)) for state in self.decoder.states]
        return dict(zip(names, shapes, strict=True))

    def _rows_of_state(self, state: State, rows: Any, entries: Any) -> tuple[Any, ...]:
        """Return the shape of all rows, of so many entries if it grows."""
        shape = self._state_shape(state)
        return (rows, entries, *shape) if state.rate else (rows, *shape)

    def _state_shape(self, state: State) -> tuple[int, ...]:
        """Return that of a row; where rows differ in length, of convolutions as the operator's."""
        if state.kind != "conv_state" or not self.takes_lengths:
            return state.shape
        channels, taps = state.shape
        return taps - 1, channels

    def _logits_shape(self) -> dict[str, tuple[str | int, ...]]:
        scored = 1 if self.last_only else "sequence"
        return {"logits": ("batch", scored, self.decoder.vocabulary)}

    def _layers(self, past: list[torch.Tensor]) -> list[LayerCache]:
        """Return the cache of each layer, whose tensors the inputs list one after the other."""
        given = iter(past)
        return [
            LayerCache(**{kind: next(given) for kind in self.cached_kinds(sizes)})
            for sizes in self.decoder.cache_sizes
        ]

    def _states(self, past: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the states, which the inputs list after the cache of the layers."""
        return past[len(past) - len(self.decoder.states) :]

    def _outputs(
        self,
        logits: torch.Tensor,
        present: list[LayerCache],
        batch: int,
        sequence: int,
        states: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, ...]:
        """Return the outputs; logits are those of each row's last token, or of all tokens."""
        shaped = logits[:, None] if self.last_only else logits.unflatten(0, (batch, sequence))
        return (shaped, *self._tensors(present), *states)

    def _tensors(self, present: list[LayerCache]) -> list[torch.Tensor]:
        return [tensor for layer in present for tensor in layer if tensor is not None]
