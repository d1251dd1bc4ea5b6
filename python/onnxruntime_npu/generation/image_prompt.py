"""A question about images, as a model's processor prepares it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError

_PROCESSORS = ("processor_config.json", "preprocessor_config.json")


def processor_of(directory: Path) -> Any:
    """Return transformers' processor of an exported model; ArgumentError if there is none."""
    if not any((directory / name).is_file() for name in _PROCESSORS):
        raise ArgumentError(
            f"{directory} holds no processor: use generate_from with token ids and pixels"
        )
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except ImportError as error:
        raise ArgumentError(f"the processor of {directory} needs a package: {error}") from None


def opened(images: Any) -> list[Any]:
    """Return images of Pillow; ArgumentError for files that hold none.

    images: one image or several, each an image of Pillow or the path of a file.
    """
    one = isinstance(images, (str, Path)) or not isinstance(images, Sequence)
    return [_opened(image) for image in ([images] if one else images)]


def _opened(image: Any) -> Any:
    if not isinstance(image, (str, Path)):
        return image
    try:
        from PIL import Image
    except ImportError:
        raise ArgumentError("images need Pillow: pip install 'onnxruntime-npu[images]'") from None
    try:
        with Image.open(image) as file:
            return file.convert("RGB")
    except (OSError, Image.DecompressionBombError) as error:
        raise ArgumentError(f"expected {image} to be a file of an image: {error}") from None


def prepared(
    processor: Any, prompt: str, images: Sequence[Any], *, chat: bool
) -> Mapping[str, np.ndarray]:
    """Return what the processor makes of a prompt and the images that it is about.

    The prompt goes through the chat template, after the images, if ``chat`` and there is one.
    Otherwise images come first, unless the prompt has their tokens; ArgumentError for a processor
    that names none.
    """
    if chat and getattr(processor, "chat_template", None):
        about = [{"type": "image", "image": image} for image in images]
        content = [*about, {"type": "text", "text": prompt}]
        given: Mapping[str, np.ndarray] = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="np",
        )
        return given
    names = ("boi_token", "image_token")
    token: Any = next((t for name in names if (t := getattr(processor, name, None))), None)
    if images and token is None:
        raise ArgumentError("expected a chat template: the processor names no token of images")
    if images and token not in prompt:
        prompt = token * len(images) + prompt
    found: Mapping[str, np.ndarray] = processor(
        text=[prompt], images=[*images] or None, return_tensors="np"
    )
    return found
