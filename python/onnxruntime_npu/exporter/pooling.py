"""One vector for a sequence: the poolings of sentence-transformers, and which a model asks for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import ExportError

POOLINGS = ("auto", "none", "mean", "cls", "max", "lasttoken", "pooler")
# Modules of sentence-transformers that an export takes over.
_TRANSFORMER, _POOLING, _NORMALIZE = "Transformer", "Pooling", "Normalize"
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Pooling:
    """What becomes of the last hidden states, and whether the vector gets length 1."""

    mode: str
    normalize: bool

    def __call__(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return [B, H] in float32 from hidden [B, S, H] and mask [B, S], 0 where it pads."""
        hidden = hidden.float()
        # Longformer's mask has a 2 for global tokens, which are tokens like others here.
        seen = None if mask is None else (mask != 0)[..., None].to(torch.float32)
        if self.mode == "mean":
            pooled = hidden.mean(1) if seen is None else _masked_mean(hidden, seen)
        elif self.mode == "max":
            pooled = (hidden if seen is None else hidden.masked_fill(seen == 0, -torch.inf)).amax(1)
        elif self.mode == "lasttoken":
            pooled = hidden[:, -1] if mask is None else _last(hidden, mask)
        else:
            pooled = hidden[:, 0]
        return self.normalized(pooled)

    def normalized(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the vectors [B, H], of length 1 if asked for."""
        return torch.nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _masked_mean(hidden: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return (hidden * seen).sum(1) / seen.sum(1).clamp(min=1e-9)


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # The last token that is seen, whichever side is padded.
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (places * (mask != 0)).amax(1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
    return hidden.gather(1, last).flatten(1)


def asked_for(directory: Path | None) -> Pooling:
    """Return the pooling of a directory of sentence-transformers; elsewhere the plain mean.

    Raises ExportError for a module or a mode that exports lack.
    """
    if directory is None or not (directory / "modules.json").is_file():
        return Pooling("mean", normalize=False)
    file = directory / "modules.json"
    try:
        kinds = {str(m["type"]).rsplit(".", 1)[-1]: directory / m["path"] for m in _read(file)}
    except (TypeError, KeyError) as error:
        raise ExportError(f"cannot read {file}: expected modules with type and path") from error
    others = sorted(kinds.keys() - {_TRANSFORMER, _POOLING, _NORMALIZE})
    if others:
        raise ExportError(
            f"{file} has the module {others[0]}, which exports lack: pass "
            f"pooling= to export without it"
        )
    mode = _mode(kinds[_POOLING] / "config.json") if _POOLING in kinds else "none"
    return Pooling(mode, normalize=_NORMALIZE in kinds)


def _mode(path: Path) -> str:
    config = _read(path)
    if not isinstance(config, dict):
        raise ExportError(f"cannot read {path}: expected an object")
    flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    modes = [_FLAGS.get(name, name) for name in flags] or [str(config.get("pooling_mode", "mean"))]
    if len(modes) != 1 or modes[0] not in _FLAGS.values():
        raise ExportError(
            f"{path} asks for {' and '.join(modes)}, expected one of "
            f"{', '.join(_FLAGS.values())}: pass pooling= to choose"
        )
    return modes[0]


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"cannot read {path}: {error}") from error
