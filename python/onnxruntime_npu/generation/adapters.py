"""LoRA adapters of an exported directory, on the device, by name."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from ..errors import ArgumentError
from ..session.ortvalue import ortvalue_from_numpy, ortvalue_to_numpy

SUFFIX = ".onnx_adapter"
Adapter = Mapping[str, ort.OrtValue]  # inputs of every step
NONE: Adapter = {}


class Adapters:
    """The files ``NAME.onnx_adapter`` beside a model, each read when it is first asked for."""

    def __init__(
        self, directory: Path, session: ort.InferenceSession, device: tuple[str, int]
    ) -> None:
        """Take the model's directory and session, and where its values stay."""
        self._paths = {path.stem: path for path in directory.glob(f"*{SUFFIX}")}
        self._inputs = {value.name: value for value in session.get_overridable_initializers()}
        self._device = device
        self._read: dict[str, Adapter] = {}
        self._lock = threading.Lock()

    def named(self, name: str | None) -> Adapter:
        """Return the inputs of an adapter, the same objects each time; none for None.

        Raises ArgumentError for a name without a file, and for a file that does not fit the model.
        """
        if name is None:
            return NONE
        if name not in self._paths:
            known = ", ".join(sorted(self._paths)) or "none"
            raise ArgumentError(f"expected an adapter of the directory ({known}), got {name!r}")
        with self._lock:
            if name not in self._read:
                self._read[name] = self._values(self._paths[name])
            return self._read[name]

    def _values(self, path: Path) -> Adapter:
        try:
            file: Any = ort.AdapterFormat.read_adapter(str(path))
            parameters: dict[str, ort.OrtValue] = file.get_parameters()
        except Exception as error:  # of the file's format, in any class of onnxruntime
            reason = str(error).strip().splitlines()[0]
            raise ArgumentError(f"{path.name} is no adapter of onnxruntime: {reason}") from error
        for name, value in parameters.items():
            given = self._inputs.get(name)
            sizes = value.shape()
            fits = given is not None and len(sizes) == len(given.shape)
            if given is None or value.data_type() != given.type or not fits:
                raise ArgumentError(f"{path.name} is of another model, which has {name} {sizes}")
        kind, number = self._device
        if kind != "npu":
            return parameters
        return {n: ortvalue_from_numpy(ortvalue_to_numpy(v), number) for n, v in parameters.items()}
