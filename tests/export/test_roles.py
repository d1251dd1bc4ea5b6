"""A role takes the first candidate that is proven; otherwise the original is kept or refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from onnxruntime_npu.exporter.proof import Findings, NotProven, compare
from onnxruntime_npu.exporter.roles.role import Role, part
from torch import nn


class Factor(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class FactorRole(Role[float, Factor]):
    """Tries the original's factor plus one, then the factor itself; at most `candidates`."""

    def __init__(self, candidates: int = 2) -> None:
        self.candidates = candidates
        self.built: list[float] = []

    def match(self, original: nn.Module) -> float:
        return part(original, "the factor", "factor")

    def build(self, parts: float) -> Iterator[Factor]:
        for factor in (parts + 1, parts)[: self.candidates]:
            self.built.append(factor)
            yield Factor(factor)

    def prove(self, original: nn.Module, built: Factor) -> float:
        x = torch.ones(3)
        return compare(original(x), built(x), f"by {built.factor:.0f}")

    def report(self, findings: Findings, site: str, built: Factor, difference: float) -> None:
        findings.replaced("factor", difference)


def test_first_proven_candidate_replaces_the_original():
    role, findings = FactorRole(), Findings()
    assert role.replace(Factor(4), findings, "layers.0").factor == 4
    assert role.built == [5, 4] and findings.expected_nodes == {"factor": 1}
    role = FactorRole()
    role.prove = lambda original, built: 0.0  # accepts the first candidate
    assert role.replace(Factor(4), findings).factor == 5 and role.built == [5]


def test_refusal_reports_most_likely_candidate_and_site():
    findings = Findings()
    with pytest.raises(NotProven, match=r"^layers.0: by 5: differs by 0.25"):
        FactorRole(candidates=1).replace(Factor(4), findings, "layers.0")
    with pytest.raises(NotProven, match=r"^by 5: differs"):
        FactorRole(candidates=1).replace(Factor(4), findings)
    with pytest.raises(NotProven, match="expected 'factor' in the factor \\(Identity\\)"):
        FactorRole().replace(nn.Identity(), findings)
    with pytest.raises(NotProven, match="expected something to take Factor's place"):
        FactorRole(candidates=0).replace(Factor(4), findings)
    assert findings == Findings()


def test_candidate_that_raises_while_built_is_not_proven():
    class Broken(FactorRole):
        def build(self, parts: float) -> Iterator[Factor]:
            yield Factor(parts / 0)

    with pytest.raises(NotProven, match="ZeroDivisionError"):
        Broken().replace(Factor(4), Findings())


def test_role_with_keep_returns_the_original():
    class Kept(FactorRole):
        def keep(
            self, original: Factor, findings: Findings, site: str, reason: NotProven
        ) -> Factor:
            findings.keep(site, "factor", str(reason))
            return original

    original, findings = Factor(4), Findings()
    assert Kept(candidates=1).replace(original, findings, "here") is original
    assert [(k["site"], k["role"]) for k in findings.kept] == [("here", "factor")]
    assert findings.expected_nodes == {}
