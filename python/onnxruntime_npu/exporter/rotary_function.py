"""Fused rotation of queries and keys where a model calls its module's ``apply_rotary_*`` function.

Most of transformers' modeling modules have such a function and call it in every layer, with cosines
and sines that the model computed once. It is replaced by ``npu_rotary_mul`` while the model runs,
if that is proven on the shapes and tables of its own calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .proof import Findings, NotProven, attempt, compare
from .replaced_functions import Call, ReplacedFunctions, observed_calls
from .roles.attention import rotate

_PREFIX = "apply_rotary_"  # some modules have a second function, for pairs
_Rotate = Callable[..., "torch.Tensor | tuple[torch.Tensor, ...]"]


class _Given(NamedTuple):
    """The arguments of a call."""

    rotated: tuple[torch.Tensor, ...]  # [B, N, S, D], or [B, S, N, D] with axis 2
    cos: torch.Tensor  # [B, S, columns]
    sin: torch.Tensor
    axis: int  # of the heads


def _read_both(
    q: torch.Tensor,
    k: torch.Tensor | None = None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> _Given:
    if cos is None or sin is None:
        raise TypeError("expected cosines and sines")
    return _Given((q,) if k is None else (q, k), cos, sin, unsqueeze_dim)


def _read_one(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> _Given:
    return _Given((x,), cos, sin, unsqueeze_dim)


def _read_sines_first(tensor: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> _Given:
    return _Given((tensor,), cos, sin, 2)


def _read_complex(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> _Given:
    cos, sin = torch.view_as_real(freqs_cis).unbind(-1)
    return _Given((xq, xk), cos, sin, 1)


def _read_complex_by_token(xq: torch.Tensor, xk: torch.Tensor, freqs_cis: torch.Tensor) -> _Given:
    return _read_complex(xq, xk, freqs_cis)._replace(axis=2)


class _Form(NamedTuple):
    """How a function reads its arguments, and how it rotates."""

    read: Callable[..., _Given]
    mode: str  # of npu_rotary_mul
    # From a table's columns to those of a head. spread: each of the first half is for two
    # neighbours; twice: the table is that of either half; pairs: each is for two neighbours.
    columns: str = "same"
    sort: bool = False  # of pairs, the first ones become the first half


_FORMS = tuple(
    form
    for read in (_read_both, _read_one)
    for form in (
        _Form(read, "half"),
        _Form(read, "interleave"),
        _Form(read, "interleave", "spread"),
        _Form(read, "half", sort=True),
        _Form(read, "half", "twice"),
    )
) + tuple(
    _Form(read, "interleave", "pairs")
    for read in (_read_complex, _read_complex_by_token, _read_sines_first)
)


def replace_rotary(
    model: Any, run: Callable[[Any], Any], functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add the proven replacements to ``functions``; ``run`` runs the model once."""
    module = sys.modules[type(model).__module__]
    for name in [name for name in vars(module) if name.startswith(_PREFIX)]:
        try:
            calls = attempt(observed_calls, lambda: run(model), module, name)
            if not calls:
                continue
            form, difference = _proven(getattr(module, name), calls)
        except NotProven as error:
            findings.keep("", "rotary", str(error))
            continue
        functions.add(module, name, _fused(form))
        nodes = sum(len(form.read(*args, **options).rotated) for args, options in calls)
        findings.replaced("npu_rotary_mul", difference, nodes=nodes)


def _proven(original: _Rotate, calls: list[Call]) -> tuple[_Form, float]:
    """Return the first form that equals a function, and its max difference."""
    first: NotProven | None = None
    for form in _FORMS:
        if not _is_readable(form, calls[0]):
            continue
        try:
            return form, max(attempt(_prove, original, form, call) for call in calls)
        except NotProven as error:
            first = first or error
    raise first or NotProven("expected queries, keys, cosines and sines as arguments")


def _is_readable(form: _Form, call: Call) -> bool:
    args, options = call
    try:
        given = attempt(lambda: form.read(*args, **options))
    except NotProven:
        return False
    return not (given.cos.is_complex() or given.sin.is_complex())


def _prove(original: _Rotate, form: _Form, call: Call) -> float:
    """Compare on random tensors in the place of queries and keys, with the tables of a call."""
    args, options = call
    count = len(form.read(*args, **options).rotated)
    args = (*(torch.randn_like(each) for each in args[:count]), *args[count:])
    expected = _tuple(original(*args, **options))
    actual = _tuple(_fused(form)(*args, **options))
    return max(
        compare(theirs, ours, f"rotary {what}")
        for what, theirs, ours in zip(("query", "key")[:count], expected, actual, strict=True)
    )


def _tuple(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else result


def _fused(form: _Form) -> _Rotate:
    def apply_rotary(*args: Any, **options: Any) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Rotate what the original function rotates, and return it alike."""
        given = form.read(*args, **options)
        dtype = given.rotated[0].dtype
        cos, sin = (
            _columns(table.to(dtype).unsqueeze(given.axis), form.columns)
            for table in (given.cos, given.sin)
        )
        rotated = tuple(
            rotate(_sorted(each) if form.sort else each, cos, sin, form.mode)
            for each in given.rotated
        )
        return rotated if len(rotated) > 1 else rotated[0]

    return apply_rotary


def _columns(table: torch.Tensor, columns: str) -> torch.Tensor:
    if columns == "spread":
        table = table[..., : table.shape[-1] // 2]
    if columns in ("spread", "pairs"):
        return table.repeat_interleave(2, -1)
    return torch.cat([table, table], -1) if columns == "twice" else table


def _sorted(x: torch.Tensor) -> torch.Tensor:
    """Move the first of each pair of columns into the first half."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
