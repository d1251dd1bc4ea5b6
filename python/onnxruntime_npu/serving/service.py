"""The models that are served, and their processes."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ArgumentError
from ..extras import told_extra
from ..generation import ranks
from ..session.provider_library import get_ep_name
from .api_errors import ApiError, shown
from .encoder import Encoder
from .engine import Engine
from .grammar_checks import GrammarChecks
from .metrics import Metrics
from .ranked_engine import RankedEngine
from .served_directory import ServedDirectory, ServedEncoder
from .served_model import ServedModel
from .settings import Settings
from .supervised import Supervised

Result = TypeVar("Result")
# What other processes and later calls import.
_NEEDED = ("onnxruntime_genai", "transformers", "llguidance")


@dataclass
class Service:
    """What the paths work with: a language model, an encoder, or both.

    ``adapted`` is the language model with each of its LoRA adapters, of the same engine.
    """

    settings: Settings
    metrics: Metrics
    language: tuple[ServedModel, Engine] | None = None
    adapted: list[ServedModel] = field(default_factory=list)
    encoding: tuple[ServedEncoder, Encoder] | None = None
    grammars: GrammarChecks | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    # Long texts take long: not on the event loop, and one after the other.
    tokenizing: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "tokenizing")
    )

    @property
    def processes(self) -> list[Supervised[Any]]:
        """The processes of the models."""
        return [each[1] for each in (self.language, self.encoding) if each is not None]

    @property
    def directories(self) -> list[ServedDirectory]:
        """The models, the language model first."""
        language = [] if self.language is None else [self.language[0], *self.adapted]
        return [*language, *([] if self.encoding is None else [self.encoding[0]])]

    async def tokenize(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function that encodes or decodes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.tokenizing, function, *arguments)

    async def tokens(
        self,
        directory: ServedDirectory,
        texts: list[str] | list[list[int]],
        most: int,
        param: str,
    ) -> list[list[int]]:
        """Return the tokens of each text; a 400 for one that is surely more than ``most``.

        ``param`` is the parameter that has them.
        """
        for text in texts:
            if isinstance(text, str):
                directory.check_length(text, most, param)
        return [
            await self.tokenize(directory.encode, text) if isinstance(text, str) else text
            for text in texts
        ]

    def language_for(self, name: str | None) -> tuple[ServedModel, Engine]:
        """Return a language model; ApiError 404 for another name, or if there is none."""
        found = self.find(name)
        if self.language is None or not isinstance(found, ServedModel):
            raise _no_such_model("a language model", name)
        return found, self.language[1]

    def encoder_for(self, name: str | None) -> tuple[ServedEncoder, Encoder]:
        """Return the encoder; ApiError 404 for another name, or if there is none."""
        self.find(name)
        if self.encoding is None or name not in (None, self.encoding[0].name):
            raise _no_such_model("an encoder", name)
        return self.encoding

    def find(self, name: str | None) -> ServedDirectory:
        """Return the model with a name, None: the first one; ApiError 404 for another name."""
        for directory in self.directories:
            if name in (None, directory.name):
                return directory
        names = " or ".join(repr(directory.name) for directory in self.directories)
        raise _no_such_model(names, name)


def _no_such_model(expected: str, name: str | None) -> ApiError:
    got = "" if name is None else f", got {shown(name)!r}"
    return ApiError(404, "model_not_found", f"expected {expected}{got}", param="model")


def open_service(
    directory: str | Path, settings: Settings, on_unusable: Callable[[str], None]
) -> Service:
    """Return the service of a language model or an encoder, and of the encoder beside it.

    Its processes are not started yet; ``on_unusable`` is called, with the reason, when one fails
    before it has been ready once. Raises ArgumentError for directories that cannot be served,
    ModuleNotFoundError for want of a package.
    """
    for needed in _NEEDED:
        if importlib.util.find_spec(needed) is None:
            raise told_extra("serving", ModuleNotFoundError(name=needed), "serve")
    parts = ranks.parts_for(Path(directory), settings.ranks)
    service, name = Service(settings, Metrics()), settings.model_name
    encoder: str | Path | None = settings.embeddings
    if ServedEncoder.recognises(directory):
        if encoder is not None:
            raise ArgumentError(f"{directory} holds an encoder: serve one at a time")
        encoder = directory
    else:
        service.language, name = _language(directory, parts, service, on_unusable), None
        if not parts:  # a model that is divided among ranks has no adapters
            service.adapted = service.language[0].adapted
    if encoder is not None:
        served = ServedEncoder(encoder, name)
        process = Encoder(served.directory, settings, service.metrics, on_unusable)
        service.encoding = (served, process)
    names = [each.name for each in service.directories]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"expected a name for each model, got {name} twice: use --name")
    return service


def _language(
    directory: str | Path, parts: int, service: Service, on_unusable: Callable[[str], None]
) -> tuple[ServedModel, Engine]:
    settings = service.settings
    if not parts:
        model = ServedModel(directory, settings.model_name)
        service.grammars = GrammarChecks(model.directory)
        return model, Engine(model.directory, settings, service.metrics, on_unusable)
    if settings.provider != get_ep_name():
        raise ArgumentError(f"ranks need the provider npu, got {settings.provider}")
    if settings.prompt_lookup_num_tokens:
        raise ArgumentError("expected no --prompt-lookup-num-tokens with ranks, which do not guess")
    ranks.launcher(parts)
    # Every part has the files of the whole model's tokenizer and settings.
    whole = Path(directory).resolve()
    model = ServedModel(whole / "rank_0", settings.model_name or whole.name)
    service.grammars = GrammarChecks(model.directory)
    return model, RankedEngine(whole, settings, service.metrics, on_unusable)
