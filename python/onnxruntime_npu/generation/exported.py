"""A directory that an export wrote: its settings, its tokenizer, and how its models are opened."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import onnxruntime as ort

from ..errors import ArgumentError
from ..json_files import read_object
from ..sampling import open_sampler
from ..session.provider_library import get_ep_name
from . import ranks
from .decoding import device_of


class Exported(ABC):
    """Base of exported models; subclasses define ``_main`` and ``_load``."""

    _main: ClassVar[str]  # the file by which a directory is known

    def __init__(
        self,
        directory: str | Path,
        *,
        providers: Sequence[Any] | None = None,
        session_options: ort.SessionOptions | None = None,
    ) -> None:
        """Open the models.

        Args:
            directory: output of the export. If that is for several ranks, this process has to be
                one of them, which ``mpiexec`` has started; it opens its part. All ranks make the
                same calls, and sample with the same seed.
            providers: as for InferenceSession; default: the NPU.
            session_options: as for InferenceSession; default: log errors only.

        Raises ArgumentError for a directory without the model or an unavailable provider.
        """
        self.directory = Path(directory)
        if (self.directory / "rank_0").is_dir():
            self.directory = ranks.part_of(self.directory)
        if not (self.directory / self._main).is_file():
            raise ArgumentError(
                f"{self.directory} holds no {self._main}: export a model to it first"
            )
        self.report = read_object(self.directory / "export_report.json")
        if isinstance(providers, str):
            raise ArgumentError(f"expected a list of providers, got {providers!r}: [{providers!r}]")
        self.providers = ranks.joined(providers or [get_ep_name()], self.report)
        self.device = device_of(self.providers)
        available = ort.get_available_providers()
        for provider in self.providers:
            name = provider if isinstance(provider, str) else provider[0]
            # onnxruntime itself would continue without it.
            if name not in available:
                raise ArgumentError(f"provider {name!r} is not available: {', '.join(available)}")
        if session_options is None:
            session_options = ort.SessionOptions()
            # onnxruntime warns that shape arithmetic stays on the CPU; `assignment` lists it.
            session_options.log_severity_level = 3
        self._session_options = session_options
        self.config = read_object(self.directory / "config.json")
        self.generation_config = read_object(self.directory / "generation_config.json")
        stop = self.generation_config.get("eos_token_id", self.config.get("eos_token_id"))
        self.stop_tokens = frozenset([stop] if isinstance(stop, int) else stop or [])
        self._load()

    @abstractmethod
    def _load(self) -> None:
        """Open the models and read what is known of them."""

    def _open(self, name: str) -> ort.InferenceSession:
        path = str(self.directory / name)
        return ort.InferenceSession(path, self._session_options, providers=self.providers)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the directory has one."""
        return (self.directory / "tokenizer_config.json").is_file()

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The tokenizer; ArgumentError when the directory has none."""
        if not self.has_tokenizer:
            raise ArgumentError(f"{self.directory} holds no tokenizer: generate from token ids")
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                self.directory, local_files_only=True, trust_remote_code=False
            )
        except ValueError as error:  # what json raises, and transformers of what it does not know
            raise ArgumentError(
                f"expected a tokenizer that transformers reads in {self.directory}, got: {error}"
            ) from error

    @functools.cached_property
    def _sampling(self) -> ort.InferenceSession:
        return open_sampler(self.directory, self.providers)
