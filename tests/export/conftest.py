"""Tiny random models, exported once per session, and the way to drive them."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.architectures import ARCHITECTURES
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

# Every supported architecture, and variants that the list does not distinguish.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{a.model_type: (a.model_type, a.tested) for a in ARCHITECTURES},
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "falcon-alibi": ("falcon", {"alibi": True, "num_kv_heads": 4, "multi_query": False}),
    "falcon-groups": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
}


def caches_of(kind: str) -> tuple[str, ...]:
    """Return the caches that the architecture of a configuration has."""
    return next(a.caches for a in ARCHITECTURES if a.model_type == CONFIGS[kind][0])


@contextlib.contextmanager
def model_kept(model: Any) -> Iterator[None]:
    """Check that a model, which is the caller's, is after the block as it was before."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attention = model.config._attn_implementation
    yield
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.config._attn_implementation == attention


def enlarge(model: Any, factor: float = 4, embeddings: Callable[..., Any] | None = None) -> Any:
    """Make the activations of a random model large enough for mistakes to show, and return it.

    ``embeddings`` changes those, which are multiplied like the other matrices without it.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif embeddings is not None and ("embed" in name or "shared" in name):
                embeddings(parameter)
            elif parameter.dim() > 1:
                parameter.mul_(factor)
    return model


def unchanged(parameter: torch.Tensor) -> None:
    """Leave embeddings as they are."""


def tiny_model(kind: str, **changes: Any) -> Any:
    """Return a random model whose activations are large enough for mistakes to show."""
    model_type, special = CONFIGS[kind]
    settings = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        **special,
        **changes,
    }
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    return enlarge(model)


def export_once(
    factory: pytest.TempPathFactory, name: str, export: Callable[[Path], Any]
) -> tuple[Path, Any]:
    """Return the directory and the report of an export of that name.

    It is made once for all workers: what one has exported is renamed into a common folder.
    """
    base = factory.getbasetemp()
    common = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported"
    place = common / name
    if not place.exists():
        own = factory.mktemp("export")
        report = export(own / "model")
        (own / "report").write_bytes(pickle.dumps(report))
        common.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # another worker was faster
            own.rename(place)
    return place / "model", pickle.loads((place / "report").read_bytes())


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path, Any]]:
    """Return a function that gives (model, directory, report) of an export, made once."""
    made: dict[str, tuple[Any, Path, Any]] = {}

    def get(kind: str, **options: Any) -> tuple[Any, Path, Any]:
        name = "_".join([kind, *(f"{key}-{value}" for key, value in sorted(options.items()))])
        if name not in made:
            model = tiny_model(kind)
            export = functools.partial(export_causal_lm, model, **{"check": False, **options})
            made[name] = (model, *export_once(tmp_path_factory, name, export))
        return made[name]

    return get


def marks_of(kind, repeated, slow):
    """Return the mark of a test that exports a kind of model whole."""
    if kind in repeated:
        return pytest.mark.exhaustive
    return pytest.mark.slow if kind in slow else ()


def letter_tokenizer():
    """A tokenizer of one token a character, for the 97 tokens of the tiny models."""
    vocabulary = {chr(ord(" ") + i): i for i in range(95)} | {"\n": 95}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<pad>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", padding_side="left")


@pytest.fixture(scope="session")
def lettered(
    exported: Callable[..., tuple[Any, Path, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Any, Path]]:
    """Return a function that gives a Llama and its export of a cache, with a tokenizer."""
    made: dict[str, tuple[Any, Path]] = {}

    def get(cache: str = "dynamic") -> tuple[Any, Path]:
        if cache not in made:
            _, directory, _ = exported("llama", cache=cache)
            original = tiny_model("llama")  # of its own, since generation_config changes
            original.generation_config.pad_token_id = PAD
            original.generation_config.eos_token_id = None
            place = shutil.copytree(directory, tmp_path_factory.mktemp("lettered") / cache)
            original.generation_config.save_pretrained(place)
            letter_tokenizer().save_pretrained(place)
            made[cache] = original, place
        return made[cache]

    return get


class Forced:
    """A sampler that returns given continuations and records the logits."""

    def __init__(self, continuations: list[list[int]]) -> None:
        self.logits: list[np.ndarray] = []
        self._continuations = np.array(continuations, np.int64)

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        self.logits.append(np.array(logits, np.float32))
        return self._continuations[:, len(self.logits) - 1]


PAD = 96  # of the letters' tokenizer
PROMPTS = [[5, 7, 9, 11], [3, 4, 5, 6, 7, 8, 9], [1]]
CONTINUATIONS = [[12, 13, 14, 15, 16], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]


def expected_logits(model: Any, prompt: list[int], continuation: list[int]) -> np.ndarray:
    """Return transformers' logits after the prompt and after each forced token but the last."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + continuation])).logits[0].float().numpy()
    return logits[len(prompt) - 1 : -1]
