"""Reads a model from a Hugging Face directory: safetensors or, of a language model, GGUF weights.

Any defect of the files raises a one-line error that names the file.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from ..progress import progress
from .checkpoint_config import (
    check_generation,
    check_layers,
    check_sizes,
    check_window,
    impossible_size,
    read_config,
    unknown_setting,
)
from .integers.description import (
    check_quantization,
    forget_quantization,
    quantization,
    quantization_config,
    unread,
)
from .integers.gguf_weights import restore_integers
from .integers.loading import loaded_as_integers
from .integers.old_config import old_quantization
from .integers.stored_linear import restore_linear
from .other_exports import other_export
from .quiet_transformers import quiet_transformers
from .weights.gguf_file import mapped_gguf
from .weights.lazy_weight import give_back_memory, stored_dtype
from .weights.parameters import as_lazy, not_finite, replace_parameters
from .weights.safetensors_file import (
    DTYPES,
    INDEX,
    SINGLE,
    Entry,
    check_files,
    mapped_files,
    weights_name,
)

_GGUF_MAGIC = b"GGUF"
_GGUF_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")  # as llama.cpp splits files
_CAUSAL_LM = "AutoModelForCausalLM"
_POOLER = "pooler."
_LEAST_BYTES = 2  # of a float that means what it says
_NUMBER = re.compile(r"\.\d+\.")  # of a layer or an expert


@dataclass
class Checkpoint:
    """A model in float32 on the CPU, its tokenizer if it has one, and its source.

    Parameters are LazyWeight: they take memory while an operation uses them, and a copy of the
    model takes none.

    Linear layers of a quantised checkpoint are StoredLinear. ``quantization`` names its format;
    ``left`` has the linear layers and experts that could have been integers and are floats: their
    role, and why. ``cache`` says how it rounds keys and values. ``warnings`` say what of the files
    was left out.
    """

    model: Any
    tokenizer: Any | None
    source: str
    quantization: str | None = None
    left: dict[str, tuple[str, str]] = field(default_factory=dict)
    tokenizer_error: str | None = None
    cache: str | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def without_tokenizer(self) -> str:
        """A warning that there is no tokenizer to write, and why."""
        return f"no tokenizer is written: {self.tokenizer_error or 'none was found'}"


def load_checkpoint(path: str | Path, *, integers: bool = False) -> Checkpoint:
    """Load a directory with config.json and safetensors, or a GGUF file or a directory with one.

    ``integers``: find the integers of a GGUF file, too; others always are what the file has.
    Raises ArgumentError for a path without a model, ExportError for one that cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise ArgumentError(f"no such model directory: {path}")
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ArgumentError(f"expected a model directory or a .gguf file, got {path}")
        return _load_gguf(path, integers)
    if (path / "config.json").is_file():
        return _load_directory(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1 and not all(_GGUF_PART.search(file.name) for file in files):
        names = ", ".join(file.name for file in files)
        raise ArgumentError(f"{path} holds several GGUF files ({names}): name one of them")
    if not files:
        raise ArgumentError(f"{path} holds neither config.json nor a .gguf file")
    return _load_gguf(files[0], integers)


def wrap(model: nn.Module, tokenizer: Any | None) -> Checkpoint:
    """Wrap the caller's model, which stays unchanged: a copy in float32 shares its weights."""
    weights = {id(p): nn.Parameter(as_lazy(p), requires_grad=False) for p in model.parameters()}
    copied = copy.deepcopy(model, weights).eval()
    for module in copied.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            dtype = torch.float32 if buffer.is_floating_point() else buffer.dtype
            setattr(module, name, buffer.to("cpu", dtype))
    return Checkpoint(copied, tokenizer, type(model).__name__)


def load_encoder(path: str | Path) -> Checkpoint:
    """Load an encoder from a directory with config.json and safetensors.

    Its linear layers are floats, also those of a quantised checkpoint. Raises ArgumentError for a
    path without a model, ExportError for one that cannot be read.
    """
    checkpoint = _load_directory(_model_directory(path), "AutoModel", optional_pooler=True)
    restore_linear(checkpoint.model)
    return checkpoint


def load_seq2seq(path: str | Path) -> Checkpoint:
    """Load an encoder-decoder from a directory with config.json and safetensors.

    Raises ArgumentError for a path without a model, ExportError for one that cannot be read.
    """
    path = _model_directory(path)
    speech = _model_type(path) in _speech_models()
    loader = "AutoModelForSpeechSeq2Seq" if speech else "AutoModelForSeq2SeqLM"
    return _load_floats(path, loader)


def load_image_text(path: str | Path) -> Checkpoint:
    """Load a model of images and text from a directory with config.json and safetensors.

    Raises ArgumentError for a path without a model, ExportError for one that cannot be read.
    """
    return _load_floats(_model_directory(path), "AutoModelForImageTextToText")


def _load_floats(path: Path, loader: str) -> Checkpoint:
    method, _ = quantization(read_config(path))
    if method is not None:
        raise ExportError(f"cannot export {path}: expected float weights, got integers of {method}")
    return _load_directory(path, loader)


def _model_directory(path: str | Path) -> Path:
    path = Path(path)
    if not (path / "config.json").is_file():
        what = "holds no config.json" if path.is_dir() else "is no model directory"
        raise ArgumentError(f"{path} {what}")
    return path


def _speech_models() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

    return set(MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)


def _load_directory(path: Path, loader: str = _CAUSAL_LM, **options: Any) -> Checkpoint:
    name, changes = weights_name(path), dict[str, Any]()
    if name not in (SINGLE, INDEX):
        changes["transformers_weights"] = name
    config = read_config(path)
    check_sizes(path, config)
    check_quantization(path, config)
    check_generation(path)
    entries = check_files(path)
    check_layers(path, config, len(entries))
    if quantization_config(config) is None and (old := old_quantization(path, entries)):
        changes["quantization_config"] = old
    method, skipped = quantization({**config, **changes})
    with loaded_as_integers(method) if method else mapped_files() as loaded:
        try:
            model = _load_model(path, str(path), loader, changes, **options)
        except ExportError as failed:
            hint = unread(skipped or method)
            if not hint:
                raise
            raise ExportError(f"{failed} {hint}") from failed
    if method is None:
        _check_stored(model, str(path), entries)
    warnings = []
    if skipped is not None:
        warnings.append(
            f"config.json has quant_method {skipped!r}, which transformers does not know: the "
            f"weights are taken for floats without it"
        )
    elif method is not None and all(_is_float(entry) for entry in entries.values()):
        warnings.append(
            f"config.json has quant_method {method!r}, but all weights of the files are floats: "
            f"they are taken as they are"
        )
    forget_quantization(model)
    tokenizer, error = _load_tokenizer(path)
    if loaded is None:
        return Checkpoint(model, tokenizer, str(path), tokenizer_error=error, warnings=warnings)
    warnings += loaded.warnings
    return Checkpoint(
        model, tokenizer, str(path), method, loaded.left, error, loaded.cache, warnings
    )


def _is_float(entry: Entry) -> bool:
    dtype = DTYPES[entry.dtype]
    return dtype.is_floating_point and dtype.itemsize >= _LEAST_BYTES


def _model_type(path: Path) -> str | None:
    """Return the ``model_type`` of a directory's config.json."""
    kind = read_config(path).get("model_type")
    return kind if isinstance(kind, str) else None


def _load_gguf(path: Path, integers: bool) -> Checkpoint:
    with _one_gguf_reader(), mapped_gguf():
        _check_gguf(path)
        model = _load_model(path.parent, str(path), gguf_file=path.name)
        tokenizer, error = _load_tokenizer(path.parent, gguf_file=path.name)
        left = restore_integers(model, path) if integers else {}
    forget_quantization(model)
    return Checkpoint(model, tokenizer, str(path), "gguf", left, error)


@contextlib.contextmanager
def _one_gguf_reader() -> Iterator[None]:
    """Parse a GGUF header once: transformers reads it three times, taking seconds each time."""
    module: Any = gguf
    original = module.GGUFReader

    @functools.lru_cache(maxsize=1)
    def shared(path: str) -> Any:
        return original(path)

    module.GGUFReader = lambda path: shared(str(path))
    try:
        yield
    finally:
        module.GGUFReader = original


def _check_gguf(path: Path) -> None:
    """Check the header and that the file is as long as its tensors need."""
    with path.open("rb") as file:
        magic = file.read(len(_GGUF_MAGIC))
    if magic != _GGUF_MAGIC:
        raise ExportError(f"{path} is not a GGUF file: it starts with {magic!r}")
    try:
        reader = gguf.GGUFReader(str(path))
        end = max((int(t.data_offset + t.n_bytes) for t in reader.tensors), default=0)
        split = reader.get_field(gguf.Keys.Split.LLM_KV_SPLIT_COUNT)
        parts = 1 if split is None else int(split.contents())
    except Exception as error:  # the reader checks nothing and may raise anything
        raise ExportError(f"{path} is damaged or cut short: {_first_line(error)}") from error
    if parts > 1:  # transformers reads one file
        raise ExportError(
            f"{path} is one of {parts} parts of a model: merge them with llama.cpp's "
            f"llama-gguf-split --merge"
        )
    if end == 0:
        raise ExportError(f"{path} holds no tensors")
    if end > path.stat().st_size:
        raise ExportError(
            f"{path} is cut short: its tensors end at byte {end}, the file at {path.stat().st_size}"
        )


def _load_model(
    directory: Path,
    source: str,
    loader: str = _CAUSAL_LM,
    changes: Mapping[str, Any] | None = None,
    *,
    optional_pooler: bool = False,
    **options: Any,
) -> Any:
    """Load a model by a class of transformers, ``optional_pooler`` also without its pooler.

    ``changes``: values that config.json does not have.
    """
    import transformers

    try:
        with quiet_transformers(), _no_other_shapes(source):
            if changes:
                options["config"] = transformers.AutoConfig.from_pretrained(
                    directory, local_files_only=True, trust_remote_code=False
                )
                options["config"].update(changes)
            loaded: Any = getattr(transformers, loader).from_pretrained(
                directory,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # transformers would name all of them
                **options,
            )
    except ExportError:
        raise
    except Exception as error:  # transformers raises various types for invalid files
        if "trust_remote_code" in str(error):
            raise ExportError(
                f"cannot load {source}: it has code of its own, which is not run: export the model "
                f"that transformers has loaded with trust_remote_code=True"
            ) from error
        config = read_config(directory)
        unknown = unknown_setting(error, config) or impossible_size(error, config)
        if "Unrecognized configuration class" in str(error):
            unknown = other_export(_model_type(directory), loader)
        raise ExportError(f"cannot load {source}: {unknown or _first_line(error)}") from error
    model, info = loaded
    check_window(source, model.config)
    missing = sorted(info.get("missing_keys") or [])
    if any(key.startswith(_POOLER) for key in missing) and optional_pooler:
        loaded[0].pooler = None  # many encoders are stored without it; never a random one
        missing = [key for key in missing if not key.startswith(_POOLER)]
    if missing:
        names = ", ".join(missing[:3])
        raise ExportError(f"cannot load {source}: it lacks {len(missing)} weights, such as {names}")
    _check_unexpected(model, source, info.get("unexpected_keys") or [])
    replace_parameters(model, lambda _name, parameter: as_lazy(parameter))
    _check_finite(model, source)
    return model.eval()


@contextlib.contextmanager
def _no_other_shapes(source: str) -> Iterator[None]:
    """Refuse weights of other shapes than the model's before transformers makes random ones.

    These have the sizes of config.json, which may be any.
    """
    from transformers import PreTrainedModel

    owner: Any = PreTrainedModel
    original = owner._finalize_model_loading

    def checked(model: Any, load_config: Any, loading_info: Any) -> Any:
        mismatched = sorted(name for name, *_ in loading_info.mismatched_keys)
        if mismatched:
            raise ExportError(
                f"cannot load {source}: it has the wrong shape for {len(mismatched)} weights, such "
                f"as {', '.join(mismatched[:3])}"
            )
        return original(model, load_config, loading_info)

    with mock.patch.object(owner, "_finalize_model_loading", staticmethod(checked)):
        yield


def _check_unexpected(model: nn.Module, source: str, unexpected: Collection[str]) -> None:
    """Refuse weights of more layers than the model has; other weights may be of other uses.

    Some may be in the model all the same: quantised experts are read beside transformers.
    """
    names = model.state_dict().keys()
    numbered = {_NUMBER.sub(".#.", name) for name in names}
    beyond = sorted(
        name for name in unexpected if name not in names and _NUMBER.sub(".#.", name) in numbered
    )
    if beyond:
        raise ExportError(
            f"cannot load {source}: it has {len(beyond)} weights of layers that config.json does "
            f"not have, such as {beyond[0]}"
        )


def _check_stored(model: nn.Module, source: str, entries: Mapping[str, Entry]) -> None:
    """Refuse integers in the place of weights: nothing says what floats they stand for."""
    floats = {name for name, p in model.named_parameters() if p.is_floating_point()}
    for name, entry in entries.items():
        parts = name.split(".")  # a model without head does not have the first
        is_weight = any(".".join(parts[first:]) in floats for first in range(len(parts)))
        if is_weight and not DTYPES[entry.dtype].is_floating_point:
            raise _not_floats(source, name, DTYPES[entry.dtype])


def _not_floats(source: str, name: str, stored: torch.dtype) -> ExportError:
    dtype = str(stored).removeprefix("torch.")
    return ExportError(
        f"cannot load {source}: expected {name} in floats, got {dtype} without what restores them"
    )


def _check_finite(model: nn.Module, source: str) -> None:
    """Refuse weights that are not numbers: what they lead to depends on the operator."""
    weights = [(n, p) for n, p in model.named_parameters() if p.is_floating_point()]
    for name, weight in progress(weights, "Checking weights", "tensor"):
        stored = stored_dtype(weight)
        if stored.itemsize < _LEAST_BYTES:  # a quantised weight, whose scale is not there
            raise _not_floats(source, name, stored)
        count = not_finite(weight)
        if count:
            raise ExportError(f"{source}: {name} has {count} values that are not finite")
    give_back_memory()


def _load_tokenizer(directory: Path, **options: Any) -> tuple[Any | None, str | None]:
    """Return the tokenizer if there is one, or why one that is there cannot be read."""
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False, **options
            )
        # Without files transformers makes one of special tokens, to which any text is nothing;
        # T5's has the mark of spaces, too.
        if len(tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)) > 1:
            return tokenizer, None
        why = "its vocabulary has special tokens only"
    except Exception as error:  # a model without tokenizer can be exported
        why = _first_line(error)
    has_one = options or any(directory.glob("tokenizer*"))
    return None, why if has_one else None


def _first_line(error: Exception) -> str:
    """Return what an error says first, with its kind if that is part of what it says."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    text = lines[0] if lines else ""
    if text.endswith(":"):  # of a list of what is wrong
        text = " ".join(lines[:2])
    bare = isinstance(error, (ArithmeticError, AttributeError, LookupError, TypeError))
    if bare or not text:
        return f"{type(error).__name__}{f': {text}' if text else ''}"
    return text
