"""What the layers of a model keep of earlier tokens: keys and values, states, both or nothing."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .caches.step import CacheSizes, LayerCache, State
from .compressed_cache import CompressedLayer, is_compressed_attention, states_of
from .proof import NotProven

RUN_TOKENS = 5  # of a model that is run to be observed
_KINDS = ("conv_state", "recurrent_state")


class LayerKind(NamedTuple):
    """What a layer keeps."""

    attends: bool  # keys and values of every token
    states: int  # places for states of each kind
    indexed: bool = False  # keys of every token by which an indexer chooses those that are seen
    own: Callable[[], Any] | None = None  # makes transformers' layer of compressed attention


ATTENDING = LayerKind(attends=True, states=0)


class Cached(NamedTuple):
    """What the layers of a model keep."""

    kinds: list[LayerKind]
    sizes: list[CacheSizes]  # of those with keys and values
    states: list[State]

    @property
    def attending(self) -> list[int]:
        """The layers with keys and values."""
        return [i for i, kind in enumerate(self.kinds) if kind.attends]


def layer_kinds(model: Any) -> list[LayerKind]:
    """Return what every layer of a model keeps; the last ones may use what others keep.

    Raises NotProven if a layer keeps something else, or if the model takes no cache.
    """
    from transformers import DynamicCache, cache_utils

    own = [count for module in model.modules() if (count := _own_states(module))]
    if own:
        return [LayerKind(attends=False, states=count) for count in own]
    compressed = _compressed(model)
    attending = (cache_utils.DynamicLayer, cache_utils.DynamicSlidingWindowLayer)
    both = (
        cache_utils.LinearAttentionAndFullAttentionLayer,
        cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
    )
    layers: list[Any] = DynamicCache(config=decoder_config(model.config)).layers
    while layers and type(layers[-1]) is cache_utils.DummyLayer:
        layers.pop()
    kinds = []
    for index, layer in enumerate(layers):
        if index in compressed:
            kinds.append(LayerKind(False, 0, own=functools.partial(copy.deepcopy, layer)))
        elif type(layer) in attending:
            kinds.append(ATTENDING)
        elif type(layer) is cache_utils.DynamicIndexedLayer or hasattr(layer, "update_index"):
            kinds.append(ATTENDING._replace(indexed=True))
        elif type(layer) is cache_utils.DummyLayer:
            kinds.append(LayerKind(attends=False, states=0))
        elif type(layer) in (*both, cache_utils.LinearAttentionLayer):
            kinds.append(LayerKind(type(layer) in both, layer.number_of_states))
        else:
            raise NotProven(
                f"expected a cache of keys and values or of states in every layer, got "
                f"{type(layer).__name__} in layer {index}, which is not exported"
            )
    if not kinds:
        raise NotProven("expected layers that cache keys and values, got none")
    cache_argument(model)
    return kinds


def decoder_config(config: Any) -> Any:
    """Return a configuration whose numbers of layers and heads are those of the decoder.

    That of an encoder-decoder has both; in a decoder alone it says that there is no encoder, and
    transformers then takes the encoder's numbers.
    """
    if not hasattr(config, "decoder_layers"):
        return config
    both = copy.deepcopy(config)
    both.is_encoder_decoder = True
    return both.get_text_config(decoder=True)


def _latent(model: Any) -> set[int]:
    """Return the layers whose keys are latents, read by roles/latent_form.py."""
    return {each.layer_idx for each in model.modules() if getattr(each, "reads_latents", False)}


def _compressed(model: Any) -> dict[int, Any]:
    """Return the modules of compressed attention, by their layers."""
    return {each.layer_idx: each for each in model.modules() if is_compressed_attention(each)}


def is_time_mixing(module: Any) -> bool:
    """Whether a module is the attention of RWKV, whose layers keep two tokens and sums."""
    return all(hasattr(module, part) for part in ("time_decay", "time_first", "time_mix_value"))


def is_matrix_memory(module: Any) -> bool:
    """Whether a module is the memory of xLSTM, whose layers keep its three parts."""
    return all(hasattr(module, f"{form}_kernel_fn") for form in ("chunkwise", "sequence", "step"))


def _own_states(module: Any) -> int:
    """Return the states of a module whose model has a class of caches of its own; 0 of others."""
    return 2 if is_time_mixing(module) else 3 if is_matrix_memory(module) else 0


def cache_name(model: Any) -> str | None:
    """Return the name of the argument that takes the cache; None without one."""
    if any(map(is_time_mixing, model.modules())):
        return "state"
    arguments = inspect.signature(model.forward).parameters
    return next((name for name in ("past_key_values", "cache_params") if name in arguments), None)


def cache_argument(model: Any) -> str:
    """Return the name of the argument that takes the cache; raises NotProven without one."""
    if (name := cache_name(model)) is not None:
        return name
    arguments = inspect.signature(model.forward).parameters
    raise NotProven(
        f"expected a forward pass that takes past_key_values, the keys and values of earlier "
        f"tokens, got one of {', '.join(arguments)}"
    )


def new_cache(
    kinds: Sequence[LayerKind], with_states: Callable[[LayerKind], Any] | None = None
) -> Any:
    """Return an empty cache of transformers; layers with a window keep all tokens, as masks do.

    ``with_states`` makes the layers that have states in the place of transformers' own.
    """
    from transformers import cache_utils

    def layer(kind: LayerKind) -> Any:
        if (kind.states or kind.own) and with_states is not None:
            return with_states(kind)
        if kind.own is not None:
            return kind.own()
        if kind.states and kind.attends:
            return cache_utils.LinearAttentionAndFullAttentionLayer(kind.states)
        if kind.states:
            return cache_utils.LinearAttentionLayer(kind.states)
        if kind.indexed:
            return _indexed_layer_class()()
        return cache_utils.DynamicLayer() if kind.attends else cache_utils.DummyLayer()

    return read_cache([layer(kind) for kind in kinds])


def read_cache(layers: list[Any]) -> Any:
    """Return a cache of layers whose ``recurrent`` is the state that was read last."""
    return _cache_class()(layers=layers)


def filled_cache(
    kinds: Sequence[LayerKind],
    past: Sequence[LayerCache | tuple[torch.Tensor, torch.Tensor]],
    states: Sequence[State] = (),
    tensors: Sequence[torch.Tensor] = (),
    with_states: Callable[[LayerKind], Any] | None = None,
) -> Any:
    """Return a cache of past keys and values [B, N, T, D], and of ``tensors`` as the ``states``."""
    cache = new_cache(kinds, with_states)
    for layer, given in zip(_attending(cache, kinds), past, strict=True):
        key, value, _, _, index_key = LayerCache(*given)
        layer.keys, layer.values = key, value
        layer.dtype, layer.device, layer.is_initialized = key.dtype, key.device, True
        if index_key is not None:  # of transformers [B, T, D]
            layer.indexer_keys, layer.is_indexer_initialized = index_key.squeeze(1), True
    for state, tensor in zip(states, tensors, strict=True):
        take_state(cache.layers[state.layer], state, tensor)
    return cache


def run_with_cache(model: Any) -> Any:
    """Run a model on RUN_TOKENS tokens; return its cache."""
    cache = new_cache(layer_kinds(model))
    _run(model, use_cache=True, **{cache_argument(model): cache})
    return cache


def text_logits(model: Any) -> torch.Tensor:
    """Run a model on RUN_TOKENS tokens without a cache; return its logits."""
    logits: torch.Tensor = _run(model, use_cache=False).logits
    return logits


def _run(model: Any, **options: Any) -> Any:
    return model(
        input_ids=torch.arange(RUN_TOKENS)[None],
        attention_mask=torch.ones(1, RUN_TOKENS, dtype=torch.int64),
        **options,
    )


def cached_by(model: Any, *, summed: bool) -> Cached:
    """Return what a run leaves in a cache; raises NotProven if that is not of every token.

    What compressed attention keeps follows from its weights instead.

    ``summed``: whether recurrent states come from a recurrence, and not from the last token alone.
    """
    kinds, cache = layer_kinds(model), run_with_cache(model)
    sizes, latent = [], _latent(model)
    attending = [index for index, kind in enumerate(kinds) if kind.attends]
    cached = zip(attending, keys_and_values(cache, kinds), strict=True)
    for index, (keys, values, _, _, index_key) in cached:
        if keys is None or keys.dim() != 4 or keys.shape[2] != RUN_TOKENS:
            raise NotProven(f"layers.{index}: expected a cache of keys [B, N, T, D] of every token")
        of_indexer = 0 if index_key is None else index_key.shape[3]
        of_layer = keys.shape[1], keys.shape[3], values.shape[3], of_indexer
        sizes.append(CacheSizes(*of_layer, latent=index in latent))
    states = [
        *_states_in(cache, kinds, summed=summed),
        *(state for each in _compressed(model).values() for state in states_of(each)),
    ]
    return Cached(kinds, sizes, states)


def run_without_cache(model: Any) -> tuple[torch.Tensor]:
    """Run a model on RUN_TOKENS tokens; return their logits."""
    return (model(input_ids=torch.arange(RUN_TOKENS)[None], use_cache=False).logits,)


def take_state(layer: Any, state: State, tensor: torch.Tensor) -> None:
    """Let a layer of a cache hold a state."""
    if isinstance(layer, CompressedLayer):
        layer.kept[state.kind] = tensor
        return
    kept = tensor.clone()  # written in place by the model
    getattr(layer, f"{state.kind}s")[state.place] = kept
    getattr(layer, f"is_{state.kind}s_initialized")[state.place] = True
    if state.kind == "conv_state":
        layer.conv_kernel_size[state.place] = kept.shape[-1]
    layer.has_previous_state[state.place] = True


def keys_and_values(cache: Any, kinds: Sequence[LayerKind]) -> list[LayerCache]:
    """Return what the layers of a cache have that attend."""

    def kept(layer: Any) -> LayerCache:
        indexed = getattr(layer, "indexer_keys", None)
        index_key = None if indexed is None else indexed[:, None]
        return LayerCache(layer.keys, layer.values, index_key=index_key)

    return [kept(layer) for layer in _attending(cache, kinds)]


def _states_in(cache: Any, kinds: Sequence[LayerKind], *, summed: bool) -> list[State]:
    found = []
    for index, (layer, kind) in enumerate(zip(cache.layers, kinds, strict=True)):
        for place in range(kind.states):
            for name in _KINDS:
                tensor = getattr(layer, f"{name}s")[place]
                if tensor is not None:
                    sums = (summed and name == "recurrent_state") or not tensor.is_floating_point()
                    found.append(State(index, name, place, tuple(tensor.shape[1:]), sums))
    return found


def state_tensors(cache: Any, states: Sequence[State]) -> list[torch.Tensor]:
    """Return the tensors of ``states`` in a cache."""

    def tensor(state: State) -> torch.Tensor:
        layer = cache.layers[state.layer]
        if isinstance(layer, CompressedLayer):
            return layer.kept[state.kind]
        return getattr(layer, f"{state.kind}s")[state.place]

    return [tensor(state) for state in states]


def _attending(cache: Any, kinds: Sequence[LayerKind]) -> list[Any]:
    return [layer for layer, kind in zip(cache.layers, kinds, strict=True) if kind.attends]


@functools.cache
def _indexed_layer_class() -> type:
    from transformers.cache_utils import DynamicIndexedLayer

    class IndexedLayer(DynamicIndexedLayer):
        """Keeps the keys of an indexer by either of transformers' interfaces."""

        def update_index(self, keys: torch.Tensor) -> torch.Tensor:
            """Add keys [B, 1, S, D]; return all of them."""
            return self.update_indexer(keys.squeeze(1))[:, None]

    return IndexedLayer


@functools.cache
def _cache_class() -> type:
    from transformers.cache_utils import Cache

    class ReadCache(Cache):
        """Knows which recurrent state was read last: that of the layer that runs.

        ``begins``: the model takes it for that of a prompt's beginning, which may have other masks.
        """

        recurrent: torch.Tensor | None = None
        begins = False
        _heads = 0  # that were given of the state

        @property
        def is_initialized(self) -> bool:
            """Whether it has tokens."""
            return not self.begins and super().is_initialized

        def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
            """Return a state, or None before the first token."""
            self.recurrent = super().get_recurrent_state(layer_idx, state_idx)
            self._heads = 0
            return self.recurrent

        def next_head(self) -> torch.Tensor:
            """Return that of one head after the other, where a layer computes them so, as Zamba."""
            assert self.recurrent is not None
            self._heads += 1
            return self.recurrent[:, self._heads - 1]

    return ReadCache
