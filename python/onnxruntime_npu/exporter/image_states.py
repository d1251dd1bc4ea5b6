"""Text that attends to images by layers of its own, as Llama 3.2 Vision: its parts and their proof.

Vision also computes the keys and values of images for these layers, so that a step of the text
reads them. Shapes: B batch, S new tokens, T past and new tokens, I images of a row, L places of
these, which are patches of all tiles of all images, N heads, D their size.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .caches.interface import BATCH, NEW, PAST
from .encoder_decoder import CachedPairs
from .model_cache import ATTENDING, filled_cache, keys_and_values, new_cache
from .proof import NotProven, compare
from .replaced_functions import ReplacedFunctions
from .token_kinds import image_token_of, metadata_of

_STATES = "cross_attention_states"  # an argument of the model and of its text
_IMAGES = 3  # of a row, to trace with
_ROWS = [7, 9]  # tokens of the proof, of which the last ones are decoded one by one
_DECODED = 2
_BEFORE = 2  # tokens of a row before its first image
KIND = "states"  # of the file's metadata: what becomes of images

# A key and a value: heads, and their sizes.
_Sizes = tuple[int, int, int]


def reads_states(model: Any) -> bool:
    """Whether layers of a model's text attend to states of images."""
    return _STATES in inspect.signature(model.forward).parameters and hasattr(
        model.base_model, "vision_model"
    )


class StatesPart(nn.Module):
    """Images of all rows to keys and values [B, N, L, D] of the layers that attend to them."""

    input_names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")

    def __init__(self, model: Any, functions: ReplacedFunctions) -> None:
        """Take the model, and what it calls in the place of its own functions."""
        super().__init__()
        self.model = model
        self.functions = functions
        vision = model.config.vision_config
        self._tiles, self._size = int(vision.max_num_tiles), int(vision.image_size)
        self._channels = int(vision.num_channels)
        self._ratios = int(vision.max_aspect_ratio_id)
        self.places = int(model.base_model.vision_model.num_patches) * self._tiles  # of an image
        config = model.config.get_text_config()
        count = int(config.num_hidden_layers)
        self.layers = sorted(set(config.cross_attention_layers))
        self.own = [i for i in range(count) if i not in self.layers]
        if not self.layers or not self.own or max(self.layers) >= count:
            raise NotProven(f"expected layers of text and of images, got {self.layers} of {count}")
        kept = self._kept(*self.example())
        self.sizes: list[_Sizes] = [(k.shape[1], k.shape[3], v.shape[3]) for k, v in kept]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return [f"present.{i}.encoder.{kind}" for i in self.layers for kind in ("key", "value")]

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of images."""
        return {"images": KIND, "image_places": str(self.places)}

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return keys and values of each layer.

        ``inputs``: as the model's processor returns them, pixel_values [B, I, tiles, channels,
        height, width] float32, aspect_ratio_ids [B, I] and aspect_ratio_mask [B, I, tiles] int64.
        """
        kept = self._kept(*inputs)
        return tuple(tensor for i in self.layers for tensor in kept[i])

    def _kept(self, *inputs: torch.Tensor) -> CachedPairs:
        """Return what all layers of the text keep of a token and of images."""
        states = self.states(*inputs)
        cache = new_cache([ATTENDING] * (len(self.layers) + len(self.own)))
        token = states.new_zeros(1, 1, 1).expand(states.shape[0], 1, states.shape[2])
        # Only the projections of states become part of the graph: nothing reads the rest.
        self.model.get_decoder()(
            inputs_embeds=token, past_key_values=cache, use_cache=True, **{_STATES: states}
        )
        return [(layer.keys, layer.values) for layer in cache.layers]

    def states(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return what layers of the text attend to, [B, L, H]."""
        owner = self.model.base_model
        pixels, *others = inputs
        given = dict(zip(self.input_names[1:], others, strict=True))
        with self.functions.replaced():
            encoded = owner.vision_model(pixel_values=pixels.to(self._dtype), **given)
        states: torch.Tensor = owner.multi_modal_projector(encoded.last_hidden_state)
        return states.flatten(1, 3)

    @property
    def _dtype(self) -> torch.dtype:
        return self.model.get_input_embeddings().weight.dtype

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with: tiles of an image are some of all."""
        generator = torch.Generator().manual_seed(3)
        shape = BATCH, _IMAGES, self._tiles
        sides = self._channels, self._size, self._size
        ratios = 1 + torch.arange(BATCH * _IMAGES).view(BATCH, _IMAGES) % self._ratios
        tiles = 1 + torch.arange(BATCH * _IMAGES).view(BATCH, _IMAGES, 1) % self._tiles
        shown = (torch.arange(self._tiles) < tiles).long()
        return torch.randn((*shape, *sides), generator=generator), ratios, shown

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        sides = self._channels, self._size, self._size
        shapes: dict[str, tuple[str | int, ...]] = {
            "pixel_values": ("batch", "images", self._tiles, *sides),
            "aspect_ratio_ids": ("batch", "images"),
            "aspect_ratio_mask": ("batch", "images", self._tiles),
        }
        for i in self.layers:
            heads, key, value = self.sizes[i]
            shapes[f"present.{i}.encoder.key"] = ("batch", heads, "places", key)
            shapes[f"present.{i}.encoder.value"] = ("batch", heads, "places", value)
        return shapes


class TokensPart(nn.Module):
    """Tokens to embeddings, in which images have no part."""

    input_names = ("input_ids",)
    output_names = ("inputs_embeds",)

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.embedding = model.get_input_embeddings()
        self._image_token = image_token_of(model.config)

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the tokens."""
        return metadata_of(self._image_token, [], 0)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return [B, S, H] in float32 for input_ids [B, S]."""
        (input_ids,) = inputs
        embedded: torch.Tensor = self.embedding(input_ids).float()
        return embedded

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        return (torch.zeros((BATCH, NEW), dtype=torch.int64),)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        size = self.embedding.weight.shape[1]
        return {
            "input_ids": ("batch", "sequence"),
            "inputs_embeds": ("batch", "sequence", size),
        }


class StatesTextPart(nn.Module):
    """Embeddings to logits, over a cache that grows and the keys and values of images."""

    def __init__(self, images: StatesPart, functions: ReplacedFunctions) -> None:
        super().__init__()
        self.model = images.model
        self.functions = functions
        self._images = images
        self.vocabulary = int(self.model.get_output_embeddings().weight.shape[0])

    def _names(self, prefix: str) -> list[str]:
        return [f"{prefix}.{i}.{kind}" for i in self._images.own for kind in ("key", "value")]

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        leading = ["inputs_embeds", "attention_mask", "position_ids"]
        of_images = [
            name.replace("present", "past_key_values") for name in self._images.output_names
        ]
        others = ["images", "cross_attention_mask"]
        return [*leading, *others, *self._names("past_key_values"), *of_images]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["logits", *self._names("present")]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits [B, 1, V] of each row's last token in float32, and the cache.

        ``inputs``: inputs_embeds [B, S, H] in float32, attention_mask [B, T], position_ids [B, S],
        images [1], 0 if no row has one, in which layers of images are left out,
        cross_attention_mask [B, S, I, tiles], 1 where a token sees a tile, keys and values
        [B, N, T - S, D] of the layers of text and [B, N, L, D] of those of images.
        """
        embeds, mask, positions, count, shown, *past = inputs
        split = 2 * len(self._images.own)
        own, of_images = (
            list(zip(x[::2], x[1::2], strict=True)) for x in (past[:split], past[split:])
        )
        places = dict(zip([*self._images.own, *self._images.layers], own + of_images, strict=True))
        kinds = [ATTENDING] * len(places)
        cache = filled_cache(kinds, [places[i] for i in range(len(kinds))])
        with self.functions.replaced(), self._left_out_without(count):
            logits = self.model(
                inputs_embeds=embeds.to(self._dtype),
                attention_mask=mask,
                position_ids=positions,
                cross_attention_mask=shown,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        present = keys_and_values(cache, kinds)
        grown = [present[i] for i in self._images.own]
        return logits.float(), *(t for layer in grown for t in (layer.key, layer.value))

    @contextmanager
    def _left_out_without(self, count: torch.Tensor) -> Iterator[None]:
        """Let layers of images return what they get inside, if there are 0 images."""

        def after(
            _: nn.Module, args: tuple[torch.Tensor, ...], result: torch.Tensor
        ) -> torch.Tensor:
            return torch.where(count > 0, result, args[0])

        layers = self.model.get_decoder().layers
        hooks = [layers[i].register_forward_hook(after) for i in self._images.layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def _dtype(self) -> torch.dtype:
        return self.model.get_input_embeddings().weight.dtype

    def empty_cache(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed keys and values of ``length`` tokens for every layer of text."""
        return self._zeros(self._images.own, batch, length)

    def no_images(self, batch: int) -> tuple[torch.Tensor, ...]:
        """Return what stands for the keys and values of images where there is none."""
        return tuple(self._zeros(self._images.layers, batch, self._images.places))

    def _zeros(self, layers: list[int], batch: int, length: int) -> list[torch.Tensor]:
        return [
            torch.zeros((batch, heads, length, size), dtype=self._dtype)
            for heads, *sizes in (self._images.sizes[i] for i in layers)
            for size in sizes
        ]

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        total = PAST + NEW
        mask = torch.ones(BATCH, total, dtype=torch.int64)
        positions = torch.arange(PAST, total).repeat(BATCH, 1)
        size = self.model.get_input_embeddings().weight.shape[1]
        count = torch.ones(1, dtype=torch.int64)
        tiles = self._images.example()[2].shape[2]
        shown = torch.ones(BATCH, NEW, _IMAGES, tiles, dtype=torch.int64)
        length = _IMAGES * self._images.places
        keys = [each + 0.1 for each in self._zeros(self._images.layers, BATCH, length)]
        embeds = torch.zeros(BATCH, NEW, size)
        return embeds, mask, positions, count, shown, *self.empty_cache(BATCH, PAST), *keys

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        size = self.model.get_input_embeddings().weight.shape[1]
        tiles = self._images.example()[2].shape[2]
        shapes: dict[str, tuple[str | int, ...]] = {
            "inputs_embeds": ("batch", "sequence", size),
            "attention_mask": ("batch", "total"),
            "position_ids": ("batch", "sequence"),
            "images": (1,),
            "cross_attention_mask": ("batch", "sequence", "images_of_row", tiles),
            "logits": ("batch", 1, self.vocabulary),
        }
        for i, (heads, *sizes) in enumerate(self._images.sizes):
            for kind, columns in zip(("key", "value"), sizes, strict=True):
                if i in self._images.own:
                    shapes[f"past_key_values.{i}.{kind}"] = ("batch", heads, "past", columns)
                    shapes[f"present.{i}.{kind}"] = ("batch", heads, "total", columns)
                else:
                    name = f"past_key_values.{i}.encoder.{kind}"
                    shapes[name] = ("batch", heads, "places", columns)
        return shapes


class StatesProbe:
    """Rows with images, padded, and rows without any; and the original's logits for them."""

    def __init__(self, images: StatesPart) -> None:
        generator = torch.Generator().manual_seed(7)
        model = images.model
        vocabulary = model.get_output_embeddings().weight.shape[0]
        longest = max(_ROWS)
        self._ids = torch.randint(0, vocabulary, (BATCH, longest), generator=generator)
        self._mask = torch.stack([torch.arange(longest) >= longest - n for n in _ROWS]).long()
        self._positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self._images = images.example()
        # Each row sees one image more after every few tokens, and none before the first.
        tokens = torch.arange(longest)[None, :, None, None]
        first = torch.tensor([longest - n + _BEFORE for n in _ROWS])[:, None, None, None]
        after = first + 2 * torch.arange(_IMAGES)[:, None]
        self._shown = (tokens >= after).long() * self._images[2][:, None]
        text = {"input_ids": self._ids, "attention_mask": self._mask, "use_cache": False}
        text["position_ids"] = self._positions
        given = dict(zip(images.input_names, self._images, strict=True))
        with torch.no_grad():
            seeing = model(**text, **given, cross_attention_mask=self._shown).logits
            blind = model(**text).logits
        self._expected = [x[:, -1 - _DECODED :].float() for x in (seeing, blind)]

    def check(self, images: StatesPart, tokens: TokensPart, text: StatesTextPart) -> None:
        """Compare the prompt's logits and those of single steps; raises NotProven."""
        length = self._ids.shape[1]
        for count, expected in zip((1, 0), self._expected, strict=True):
            of_images = images(*self._images) if count else text.no_images(BATCH)
            shown = self._shown if count else self._shown[:, :, :1] * 0
            past, start, collected = text.empty_cache(BATCH, 0), 0, []
            for end in range(length - _DECODED, length + 1):
                step = slice(start, end)
                given = (
                    tokens(self._ids[:, step]),
                    self._mask[:, :end],
                    self._positions[:, step],
                    torch.tensor([count]),
                    shown[:, step],
                )
                logits, *past = text(*given, *past, *of_images)
                collected.append(logits)
                start = end
            what = f"logits of the whole model {'with' if count else 'without'} images"
            compare(expected, torch.cat(collected, 1), what)
