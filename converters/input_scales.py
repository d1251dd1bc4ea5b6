"""Scales of int8 activations, chosen from what calibration has seen of the layers' inputs.

The step of integers is set by the largest of the features that share it. Features that are much
larger than others are divided by factors, by which the rows of the weight are multiplied: the
method of "SmoothQuant" (Xiao et al., 2022). How much of the range the weight takes over, and how
much of what is left is clipped, is searched for each input: what errs least in the outputs is
taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Errors of outputs, relative to these, that a static step may make. A few tokens, to which all
# others attend, have activations hundreds of times as large as others: rows are bounded, too.
STATIC_ERROR = 0.03
_OF_A_ROW = 3  # times the error of all rows
# Shares of a feature's range that its factor takes over; None: no factors.
_SHARES = (None, 0.5, 0.65, 0.8, 0.9)
_CLIPPED = (1.0, 0.8, 0.65, 0.5, 0.35)  # what integers reach, of the largest magnitude
# A feature that calibration has hardly seen gets the range of this share of the mean one, so that
# no other text makes it drown all others.
_UNSEEN = 1e-2
_LEAST = 1e-6  # magnitude that has a scale
# Mean squares below these shares of all rows', or of all outputs', count as these.
_QUIET_ROW, _QUIET_OUTPUT = 1e-3, 1e-2
_OUTPUTS = 512  # whose weights are rounded in the search


@dataclass(frozen=True)
class SeenInputs:
    """What calibration has seen of a tensor that one or more layers take as their input.

    ``largest``: magnitudes of each feature, float32 [in]. ``rows``: some of the rows, [n, in].
    """

    largest: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True)
class InputScales:
    """How the input of layers is rounded to int8.

    ``factors``: float32 [in], by which features are divided before, or None for none. ``step``: the
    size of one integer, or None if each row has its own. ``error`` and ``worst``: what rounding
    inputs and weights changes in the outputs, relative to these: the root of the mean square over
    all rows, and that of the row for which the inputs' part is largest.
    """

    factors: torch.Tensor | None
    step: float | None
    error: float
    worst: float


def input_scales(
    weights: Sequence[torch.Tensor], seen: SeenInputs, *, static: bool, most: float = STATIC_ERROR
) -> InputScales:
    """Return the factors, and with ``static`` the step, that err least.

    Where every static step errs by more than ``most``, each row has its own.

    Args:
        weights: of the layers that take the input, [out, in] each.
        seen: what calibration has seen of it.
        static: one step for all rows; else each row has its own, of its largest magnitude.
        most: the error with a static step; a single row's may be three times as large.

    """
    found = _candidates(weights, seen, static=static)
    if static:
        exact = [e for e in found if e.error <= most and e.worst <= _OF_A_ROW * most]
        found = exact or _candidates(weights, seen, static=False)
    return min(found, key=lambda each: each.error)


def _candidates(
    weights: Sequence[torch.Tensor], seen: SeenInputs, *, static: bool
) -> list[InputScales]:
    """Return scales with each share that the weights take over and each share that is kept.

    Errors of features are taken to be independent of one another, as those of rounding are. Each
    output counts relative to its own size, so that small values beside large queries do, and each
    row relative to its own, since norms follow.
    """
    joined = torch.cat([_plain(weight) for weight in weights])
    rows = seen.rows.float().to(joined.device)
    largest, reach = _ranges(seen.largest.to(joined.device)), _ranges(joined.abs().amax(0))
    squares = (rows @ joined.t()).square()
    energy = squares.mean(1)
    energy = energy.clamp(min=float(energy.mean()) * _QUIET_ROW or 1.0)
    sizes = (squares / energy[:, None]).mean(0).clamp(min=_QUIET_OUTPUT)
    del squares
    gains = (1 / sizes) @ joined.square() / len(joined)  # of each feature's squared error
    moments = (rows.square() / energy[:, None]).mean(0)
    every = -(-len(joined) // _OUTPUTS)
    sample, weighting = joined[::every].contiguous(), 1 / sizes[::every] / len(sizes[::every])
    del joined
    candidates = []
    for share in _SHARES:
        factors = torch.ones_like(largest)
        if share is not None:
            factors = largest**share / reach ** (1 - share)
            factors = factors / factors.log().mean().exp()
        divided, top = rows / factors, float((largest / factors).max())
        wrong = _rounding(sample * factors) / factors
        of_weight = float(weighting @ (wrong.square() @ moments))
        for clipped in _CLIPPED if static else (1.0,):
            step: torch.Tensor | float = top * clipped / 127
            if not static:
                step = divided.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / 127
            wrong = ((divided / step).round().clamp(-128, 127) * step - divided) * factors
            by_row = wrong.square() @ gains / energy
            candidates.append(
                InputScales(
                    None if share is None else factors,
                    top * clipped / 127 if static else None,
                    (float(by_row.mean()) + of_weight) ** 0.5,
                    float(by_row.max()) ** 0.5,
                )
            )
    return candidates


def _ranges(largest: torch.Tensor) -> torch.Tensor:
    return largest.clamp(min=max(_LEAST, _UNSEEN * float(largest.mean())))


def _plain(weight: torch.Tensor) -> torch.Tensor:
    """Return a float32 tensor of its own, of whatever kind the parameter is."""
    values = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    values.copy_(weight.detach())
    return values


def _rounding(weight: torch.Tensor) -> torch.Tensor:
    """Return the errors of a weight [out, in] whose outputs have a scale each."""
    step = weight.abs().amax(1, keepdim=True).clamp(min=_LEAST) / 127
    return (weight / step).round() * step - weight
