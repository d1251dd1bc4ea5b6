"""Sample calls of an operator and the tolerances of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from . import dtypes as dt

if TYPE_CHECKING:
    import torch


def check(condition: bool, message: str) -> None:
    """Raise ArgumentError unless the condition holds: used by references to reject arguments."""
    if not condition:
        raise ArgumentError(message)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a reference gets a tensor that has a shape but no values to compute with."""
    import torch

    return type(tensor) is not torch.Tensor or tensor.device.type == "meta"


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return floats in at least float32, in which references compute."""
    import torch

    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def check_indices(
    values: torch.Tensor,
    low: int | None,
    high: int,
    what: str,
    *,
    closed: bool = False,
    where: torch.Tensor | None = None,
    note: str = "",
) -> None:
    """Raise ArgumentError for a value outside [low, high); a traced tensor has no values to check.

    ``low`` None allows negative values, ``closed`` allows ``high`` itself, and only values
    where ``where`` is true are checked. The message is "<what> in [low, high)<note>, got <value>".
    """
    if is_traced(values):
        return
    if where is not None:
        values = values[where]
    fits = values <= high if closed else values < high
    if low is not None:
        fits &= values >= low
    if not fits.all():
        value = values[~fits].flatten()[0].item()
        allowed = f"[{low or 0}, {high}{']' if closed else ')'}"
        raise ArgumentError(f"{what} in {allowed}{note}, got {value}")


class Sample:
    """One call with its torch arguments.

    ``id`` names it in test output; ``expect`` holds known outputs (nested lists or None where
    unknown), for facts known independently of the reference.
    """

    def __init__(self, *args: Any, id: str = "", expect: list[Any] | None = None, **kwargs: Any):
        self.args = args
        self.kwargs = kwargs
        self.id = id
        self.expect = expect

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Sample:
        """Return the call with every argument by name, ``self`` among them."""
        sample = cls()
        sample.kwargs = dict(arguments)
        return sample


@dataclass(frozen=True)
class ErrorCase:
    """A call that must fail with a message that matches."""

    make: Callable[[Maker], Sample]
    match: str
    needs_values: bool
    id: str


@dataclass(frozen=True)
class Tolerance:
    """|result - reference| <= atol + rtol * |reference|."""

    rtol: float
    atol: float
    reason: str


def default_tolerance(dtype: str) -> Tolerance:
    """Return the tolerance of an operator that computes in float32 and rounds its result once."""
    if dtype == "float16":
        return Tolerance(1e-3, 1e-3, "one rounding of the result: 2^-11 relative")
    if dtype == "bfloat16":
        return Tolerance(8e-3, 8e-3, "one rounding of the result: 2^-8 relative")
    if dtype == "float32":
        return Tolerance(1e-5, 1e-5, "float32 arithmetic in another order than the reference")
    return Tolerance(0, 0, "exact")


class Maker:
    """Makes the tensors of samples: seeded, so that failures are reproducible."""

    def __init__(self, dtype: str, seed: int = 0):
        import torch

        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, dtype: str | None = None, scale: float = 1.0) -> torch.Tensor:
        """Return normally distributed values times ``scale``; integers in [-8, 8) for int types."""
        import torch

        name = dtype or self.dtype
        if name == "bool":
            return self.bools(*shape)
        if not dt.is_floating(name):
            low = 0 if name.startswith("u") else -8
            return self.ints(*shape, low=low, high=8, dtype=name)
        values = torch.randn(shape, generator=self._generator, dtype=torch.float32)
        return (values * scale).to(dt.to_torch(name))

    def uniform(
        self, *shape: int, low: float = 0.0, high: float = 1.0, dtype: str | None = None
    ) -> torch.Tensor:
        """Return values in [low, high)."""
        import torch

        values = torch.rand(shape, generator=self._generator, dtype=torch.float32)
        return (values * (high - low) + low).to(dt.to_torch(dtype or self.dtype))

    def ints(self, *shape: int, low: int = 0, high: int = 8, dtype: str = "int64") -> torch.Tensor:
        """Return integers in [low, high)."""
        import torch

        values = torch.randint(low, high, shape, generator=self._generator)
        return values.to(dt.to_torch(dtype))

    def bools(self, *shape: int, p: float = 0.5) -> torch.Tensor:
        """Return booleans that are true with probability ``p``."""
        import torch

        return torch.rand(shape, generator=self._generator) < p

    def permutation(self, n: int, dtype: str = "int64") -> torch.Tensor:
        """Return the numbers 0..n-1 in random order."""
        import torch

        return torch.randperm(n, generator=self._generator).to(dt.to_torch(dtype))

    def tensor(self, values: Any, dtype: str | None = None) -> torch.Tensor:
        """Return the given values as a tensor."""
        import torch

        return torch.tensor(values, dtype=dt.to_torch(dtype or self.dtype))
