"""Text of an exported language model, for Triton's Python backend.

Each call generates one batch of all requests that Triton has collected. For continuous batching and
streams, use `onnxruntime-npu serve` instead.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from onnxruntime_npu.generation import CausalLM


class TritonPythonModel:
    """The class that the backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the directory that the configuration names, on its device."""
        parameters = json.loads(args["model_config"])["parameters"]
        device = int(parameters["device_id"]["string_value"])
        self._model = CausalLM(
            parameters["directory"]["string_value"],
            providers=[("NPUExecutionProvider", {"device_id": device})],
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests; those of equal options are generated together."""
        alike = defaultdict(list)
        for number, request in enumerate(requests):
            prompts = _rows(request, "prompt", [])
            counts = _rows(request, "max_tokens", [64] * len(prompts))
            temperatures = _rows(request, "temperature", [0.0] * len(prompts))
            asked = zip(counts, temperatures, strict=True)
            for row, (prompt, values) in enumerate(zip(prompts, asked, strict=True)):
                alike[values].append((number, row, prompt))

        texts: list[dict[int, str]] = [{} for _ in requests]
        errors: dict[int, str] = {}
        for (tokens, temperature), places in alike.items():
            options = {"do_sample": True, "temperature": temperature} if temperature else {}
            try:
                batch = [prompt.decode() for *_, prompt in places]
                found = self._model.generate(batch, max_new_tokens=tokens, **options).texts
            except ValueError as error:  # of arguments: the others are answered
                errors.update((number, str(error)) for number, *_ in places)
                continue
            for (number, row, _), text in zip(places, found, strict=True):
                texts[number][row] = text
        return [
            pb_utils.InferenceResponse([], pb_utils.TritonError(errors[number]))
            if number in errors
            else _response([rows[row] for row in sorted(rows)])
            for number, rows in enumerate(texts)
        ]

    def finalize(self) -> None:
        """Free the model's memory."""
        del self._model


def _response(texts: list[str]) -> Any:
    array = np.array([[text.encode()] for text in texts], object)
    return pb_utils.InferenceResponse([pb_utils.Tensor("text", array)])


def _rows(request: Any, name: str, default: list[Any]) -> list[Any]:
    """Return the value of each row of a tensor [B, 1], or the default if it was left out."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy()[:, 0].tolist()
