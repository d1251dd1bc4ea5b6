"""Generates text about images: features of each image, then one step per token.

Keys and values stay on the device between steps.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..sampling import Sampler
from .exported import Exported
from .growing_cache import GrowingCache
from .loop import Generation, checked_count, chooser, run
from .patch_positions import checked_grids, patch_positions, patch_windows, token_positions

VISION, EMBEDDING, TEXT = "vision.onnx", "embedding.onnx", "text.onnx"
_KINDS = "token_type_ids"  # an input of the text where tokens of an image see each other


class ImageTextLM(Exported):
    """A model of images and text, ready to generate text.

    Exported to a directory by ``export_image_text_to_text``.
    """

    _main = TEXT

    def _load(self) -> None:
        self.vision, self.embedding, self.text = map(self._open, (VISION, EMBEDDING, TEXT))
        self.image_shape = [int(size) for size in self.vision.get_inputs()[0].shape[1:]]
        count, size = self.vision.get_outputs()[0].shape
        self._no_features = np.empty((0, size), np.float32)
        # Of a model that takes patches: how many become one token, in either direction.
        patches = self.vision.get_modelmeta().custom_metadata_map
        merge, window = (patches.get(name) for name in ("spatial_merge_size", "patches_of_window"))
        self.merge = None if merge is None else int(merge)
        self.window = None if window is None else int(window)  # rows and columns of one
        self.tokens_per_image = count if self.merge is None else None  # each has its own
        metadata = self.embedding.get_modelmeta().custom_metadata_map
        self.image_token = int(metadata["image_token_id"])
        logits = next(o for o in self.text.get_outputs() if o.name == "logits")
        self.vocabulary = int(logits.shape[-1])
        limit = self.config.get("text_config", {}).get("max_position_embeddings")
        self.context_length = limit if isinstance(limit, int) else 2**31

    def generate_from(
        self,
        input_ids: np.ndarray,
        *,
        attention_mask: np.ndarray | None = None,
        pixel_values: np.ndarray | None = None,
        image_grid_thw: np.ndarray | None = None,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
    ) -> Generation:
        """Continue what a processor of transformers returns.

        Args:
            input_ids: [B, S] integers; each image has its tokens, rows are padded on the left.
            attention_mask: [B, S] integers, 0 where a row is padded; default: no padding.
            pixel_values: [images, channels, height, width] float32, in the order of their tokens;
                or [B, images, channels, height, width], in which images of zeros are padding. Of
                a model that takes patches: [patches, values] of all images.
            image_grid_thw: of a model that takes patches: [images, 3] integers, 1 and the rows and
                columns of patches of each image.
            max_new_tokens: max number of tokens to generate for each row.
            sampler: chooses tokens; default: greedy. A Sampler runs on the device; a function gets
                logits [B, V] on the host and returns tokens [B].
            on_tokens: gets the new token of every row after each step, None for a finished row.

        Raises ArgumentError for wrong inputs, and rows that fill the model's context.
        """
        count = checked_count(max_new_tokens)
        ids = _integers("input_ids", input_ids)
        mask = np.ones_like(ids) if attention_mask is None else attention_mask
        mask = _integers("attention_mask", mask)
        if mask.shape != ids.shape or not mask[:, -1].all():
            raise ArgumentError(
                f"expected attention_mask of shape {list(ids.shape)} with padding on the left, got "
                f"{list(mask.shape)}"
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise ArgumentError(
                f"expected tokens from 0 to {self.vocabulary - 1}, got {ids.min()} to {ids.max()}"
            )
        if ids.shape[1] >= self.context_length:
            raise ArgumentError(
                f"the prompt has {ids.shape[1]} tokens, the model's context {self.context_length}"
            )
        shown = int((ids == self.image_token).sum())
        positions: tuple[np.ndarray, np.ndarray] | None = None
        if self.merge is not None:
            grids = checked_grids(image_grid_thw, self.merge)
            features = self._features_of_patches(pixel_values, grids)
            positions = token_positions(ids, mask, self.image_token, grids, self.merge)
            if len(features) != shown:
                raise ArgumentError(
                    f"expected {len(features)} image tokens for {len(grids)} images, got {shown}"
                )
        elif image_grid_thw is not None:
            raise ArgumentError("expected no image_grid_thw: the model takes images of one size")
        else:
            features = self._features(pixel_values, shown)
        budget = min(count, self.context_length - ids.shape[1])
        choose = chooser(Sampler() if sampler is None else sampler, lambda: self._sampling)
        rows = [row[keep != 0].tolist() for row, keep in zip(ids, mask, strict=True)]
        with closing(_Stepper(self, ids, mask, features, positions)) as state:
            return run(state, choose, rows, budget, self.stop_tokens, on_tokens)

    def _features_of_patches(
        self, pixel_values: np.ndarray | None, grids: np.ndarray
    ) -> np.ndarray:
        """Return the features of all images [F, H], whose patches follow each other."""
        assert self.merge is not None
        sizes = grids.prod(1)
        none = np.zeros((0, *self.image_shape), np.float32)
        patches = none if pixel_values is None else np.asarray(pixel_values)
        expected = [int(sizes.sum()), *self.image_shape]
        if patches.dtype.kind != "f" or list(patches.shape) != expected:
            raise ArgumentError(
                f"expected pixel_values of float32 and shape {expected}, as image_grid_thw says, "
                f"got {patches.dtype} {list(patches.shape)}"
            )
        found = [self._no_features]
        start = 0
        for (_, rows, columns), size in zip(grids.tolist(), sizes.tolist(), strict=True):
            image, start = patches[start : start + size], start + size
            places = patch_positions(rows, columns, self.merge)
            given = {
                "pixel_values": np.ascontiguousarray(image, np.float32),
                "patch_positions": places,
            }
            if self.window is not None:
                given["patch_windows"] = patch_windows(places, self.window)
            found.append(self.vision.run(None, given)[0])
        return np.concatenate(found)

    def _features(self, pixel_values: np.ndarray | None, tokens: int) -> np.ndarray:
        """Return the features of all images [F, H] for as many image tokens."""
        images = np.asarray([] if pixel_values is None else pixel_values)
        if images.ndim == 5:
            images = images.reshape(-1, *images.shape[2:])
            images = images[images.any(axis=(1, 2, 3))]
        if images.size and (images.dtype.kind != "f" or list(images.shape[1:]) != self.image_shape):
            raise ArgumentError(
                f"expected pixel_values of float32 and shape [images, "
                f"{', '.join(map(str, self.image_shape))}], got {images.dtype} {list(images.shape)}"
            )
        count = len(images) if images.size else 0
        assert self.tokens_per_image is not None
        if tokens != count * self.tokens_per_image:
            raise ArgumentError(
                f"expected {self.tokens_per_image} image tokens for each of {count} images, got "
                f"{tokens} in all"
            )
        found = [
            self.vision.run(None, {"pixel_values": np.ascontiguousarray(image[None], np.float32)})[
                0
            ]
            for image in images[:count]
        ]
        return np.concatenate(found) if found else self._no_features


class _Stepper:
    """The state of one batch, whose cache grows by one token per step."""

    def __init__(
        self,
        model: ImageTextLM,
        ids: np.ndarray,
        mask: np.ndarray,
        features: np.ndarray,
        positions: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        self._model = model
        self._ids, self._mask, self._features = ids, mask, features
        # Those of the prompt [3, B, S] and the next ones [B], if they do not follow from the mask.
        self._positions = positions
        self._kinds = (ids == model.image_token).astype(np.int64)  # 0 for what is generated
        self._takes_kinds = any(x.name == _KINDS for x in model.text.get_inputs())
        self._cache = GrowingCache(model.text, model.device, len(ids))

    def prefill(self) -> ort.OrtValue:
        return self._step(self._ids, self._features)

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        self._mask = np.pad(self._mask, ((0, 0), (0, 1)), constant_values=1)
        self._kinds = np.pad(self._kinds, ((0, 0), (0, 1)))
        return self._step(np.ascontiguousarray(tokens[:, None]), self._model._no_features)

    def close(self) -> None:
        self._cache.clear()

    def _step(self, ids: np.ndarray, features: np.ndarray) -> ort.OrtValue:
        model = self._model
        embedding = model.embedding.io_binding()
        embedding.bind_cpu_input("input_ids", ids)
        embedding.bind_cpu_input("image_features", features)
        embedding.bind_output("inputs_embeds", *model.device)
        model.embedding.run_with_iobinding(embedding)
        return self._cache.step(
            {
                "inputs_embeds": embedding.get_outputs()[0],
                "attention_mask": self._mask,
                "position_ids": self._next_positions(ids.shape[1]),
                **({_KINDS: self._kinds} if self._takes_kinds else {}),
            }
        )

    def _next_positions(self, count: int) -> np.ndarray:
        if self._positions is None:
            return np.maximum(self._mask.cumsum(axis=1) - 1, 0)[:, -count:]
        positions, following = self._positions
        # After the prompt, each token is one of text, wherever an image ended.
        self._positions = np.tile(following[:, None], (3, 1, 1)), following + 1
        return positions


def _integers(name: str, array: np.ndarray) -> np.ndarray:
    """Return int64 [B, S]; raises ArgumentError for anything else."""
    found = np.asarray(array)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind not in "iub":
        raise ArgumentError(
            f"expected {name} as integers [batch, sequence], got {found.dtype} {list(found.shape)}"
        )
    return np.ascontiguousarray(found, np.int64)
