"""Which parts of a model its ranks divide: heads and columns of MLPs, experts, or both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import ArgumentError
from ..is_number import is_number
from . import expert_parallel, tensor_parallel
from .divided_linear import GROUP
from .proof import Findings
from .roles.decoder import Decoder


@dataclass(frozen=True)
class Division:
    """Numbers of ranks that heads and MLPs, and experts, are divided among; 1: they are not.

    Raises ArgumentError for numbers below 1, and for two that are not of the same ranks.
    """

    tensor_parallel: int
    expert_parallel: int

    def __post_init__(self) -> None:
        for name, ranks in vars(self).items():
            if not is_number(ranks, int) or ranks < 1:
                raise ArgumentError(f"{name} expected a whole number from 1, got {ranks!r}")
        if self.tensor_parallel > 1 and self.expert_parallel not in (1, self.tensor_parallel):
            raise ArgumentError(
                f"expected expert_parallel to be 1 or tensor_parallel's {self.tensor_parallel}: "
                f"the ranks are the same, got {self.expert_parallel}"
            )

    @property
    def ranks(self) -> int:
        """Number of ranks; 1: the model is whole."""
        return max(self.tensor_parallel, self.expert_parallel)

    @property
    def group(self) -> str:
        """What the file calls all ranks, several names with ";" between."""
        groups = {GROUP: self.tensor_parallel, expert_parallel.GROUP: self.expert_parallel}
        return ";".join(name for name, ranks in groups.items() if ranks > 1)

    def check_options(self, quant: str, dtype: torch.dtype, adapters: int) -> None:
        """Refuse a quantisation, or a number of switched adapters, that ranks do not have."""
        if self.tensor_parallel > 1:
            tensor_parallel.check_quant(quant, dtype)
        if self.ranks > 1 and adapters:
            name = "tensor_parallel" if self.tensor_parallel > 1 else "expert_parallel"
            raise ArgumentError(f"expected no switched_adapters with {name}, got {adapters}")

    def check(self, decoder: object) -> None:
        """Refuse a decoder that cannot be divided so."""
        if self.tensor_parallel > 1:
            tensor_parallel.check_divisible(decoder, self.tensor_parallel)
        if self.expert_parallel > 1:
            expert_parallel.check_divisible(decoder, self.expert_parallel)

    def part_of(self, decoder: Decoder, rank: int, findings: Findings) -> Decoder:
        """Return what one rank computes of a decoder that is not refused."""
        if self.tensor_parallel > 1:
            decoder = tensor_parallel.part_of(decoder, rank, self.ranks, findings)
        if self.expert_parallel > 1:
            decoder = expert_parallel.with_own_experts(decoder, rank, self.ranks, findings)
        return decoder
