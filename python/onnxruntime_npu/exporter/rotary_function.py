"""Fused rotation of queries and keys where a model calls its module's ``apply_rotary_pos_emb``.

Most of transformers' modeling modules have a function of that name and call it in every layer,
with cosines and sines that the model computed once. It is replaced by ``npu_rotary_mul`` while the
model runs, if that is proven on the shapes and tables of its own calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from .proof import Findings, NotProven, attempt, compare

_PREFIX = "apply_rotary_pos_emb"  # some modules have a second function, for pairs
_Rotate = Callable[..., tuple[torch.Tensor, torch.Tensor]]
_Call = tuple[tuple[Any, ...], dict[str, Any]]


class _Form(NamedTuple):
    mode: str  # of npu_rotary_mul
    spread: bool = False  # each column of the first half of a table is for two neighbours
    sort: bool = False  # of pairs, the first ones become the first half
    narrow: bool = False  # a table has one column for each pair


_FORMS = (
    _Form("half"),
    _Form("interleave"),
    _Form("interleave", spread=True),
    _Form("half", sort=True),
    _Form("half", narrow=True),
)


class RotaryFunctions:
    """The functions of a model's module that are replaced."""

    def __init__(self, module: Any, fused: dict[str, _Rotate]) -> None:
        self._module = module
        self._fused = fused

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the functions inside."""
        originals = {name: getattr(self._module, name) for name in self._fused}
        for name, function in self._fused.items():
            setattr(self._module, name, function)
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(self._module, name, function)


def replace_rotary(model: Any, run: Callable[[Any], Any], findings: Findings) -> RotaryFunctions:
    """Return the proven replacements; ``run`` runs the model once."""
    module = sys.modules[type(model).__module__]
    fused = {}
    for name in [name for name in vars(module) if name.startswith(_PREFIX)]:
        try:
            calls = attempt(_observed, model, module, name, run)
            if not calls:
                continue
            fused[name], difference = _proven(getattr(module, name), calls)
        except NotProven as error:
            findings.keep("", "rotary", str(error))
            continue
        findings.replaced("npu_rotary_mul", difference, nodes=2 * len(calls))
    return RotaryFunctions(module, fused)


def _observed(model: Any, module: Any, name: str, run: Callable[[Any], Any]) -> list[_Call]:
    """Return the arguments of every call in a run."""
    calls: list[_Call] = []
    original = getattr(module, name)

    def observe(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    with RotaryFunctions(module, {name: observe}).replaced():
        run(model)
    return calls


def _proven(original: _Rotate, calls: list[_Call]) -> tuple[_Rotate, float]:
    """Return the first form that equals a function, and its max difference."""
    first: NotProven | None = None
    for form in _FORMS:
        fused = _fused(form)
        try:
            return fused, max(attempt(_prove, original, fused, call) for call in calls)
        except NotProven as error:
            first = first or error
    assert first is not None
    raise first


def _prove(original: _Rotate, fused: _Rotate, call: _Call) -> float:
    """Compare on random queries and keys, with the tables of a call."""
    (query, key, *rest), options = call
    query, key = torch.randn_like(query), torch.randn_like(key)
    expected = original(query, key, *rest, **options)
    actual = fused(query, key, *rest, **options)
    return max(
        compare(theirs, ours, f"rotary {what}")
        for what, theirs, ours in zip(("query", "key"), expected, actual, strict=True)
    )


def _fused(form: _Form) -> _Rotate:
    def apply_rotary_pos_emb(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate q and k [B, N, S, D], or [B, S, N, D] with unsqueeze_dim 2."""
        cos, sin = (table.to(q.dtype).unsqueeze(unsqueeze_dim) for table in (cos, sin))
        size = cos.shape[-1]
        if form.spread:
            cos, sin = (table[..., : size // 2].repeat_interleave(2, -1) for table in (cos, sin))
        elif form.narrow:
            cos, sin = (torch.cat([table, table], -1) for table in (cos, sin))
            size *= 2

        def rotate(x: torch.Tensor) -> torch.Tensor:
            if form.sort:
                x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
            if size == x.shape[-1]:
                return torch.ops.npu.npu_rotary_mul(x, cos, sin, form.mode)
            head, tail = x[..., :size], x[..., size:]
            return torch.cat([torch.ops.npu.npu_rotary_mul(head, cos, sin, form.mode), tail], -1)

        return rotate(q), rotate(k)

    return apply_rotary_pos_emb
