"""Models that several ranks compute together: where a rank's part is, and how ranks are started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..session.provider_library import get_ep_name

# What launchers (those of mpich, Open MPI and Slurm) tell a process: its rank, and the number of
# ranks.
_VARIABLES = {
    "PMI_RANK": "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID": "SLURM_NTASKS",
}
# What the reports of one export have in common.
_OF_ALL_RANKS = ("model", "dtype", "cache", "quant", "tensor_parallel", "expert_parallel", "group")
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"  # of the package mpich


def rank_of_process() -> int | None:
    """Return the rank that this process was started as; None without a launcher."""
    return next((rank for name in _VARIABLES if (rank := _number(name)) is not None), None)


def _count_of_ranks() -> int | None:
    """Return how many ranks were started with this process; None if no launcher tells."""
    told = (size for rank, size in _VARIABLES.items() if _number(rank) is not None)
    return next((count for name in told if (count := _number(name)) is not None), None)


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def count_of_parts(directory: Path) -> int:
    """Return for how many ranks a model was exported; 0 for a whole model.

    The first rank's report tells. ArgumentError if a rank's part is missing, or of another export.
    """
    if not any(directory.glob("rank_*")):
        return 0
    first = _report(directory, 0)
    ranks = max(first["tensor_parallel"], first["expert_parallel"])
    common = {name: first[name] for name in _OF_ALL_RANKS}
    for rank in range(ranks):
        part = _report(directory, rank)
        for name, expected in {**common, "rank": rank}.items():
            if part.get(name) != expected:
                raise ArgumentError(
                    f"expected in {directory / f'rank_{rank}'} a part of rank_0's export, with "
                    f"{name} {expected!r}, got {part.get(name)!r}: export the model again"
                )
    return ranks


def _report(directory: Path, rank: int) -> dict[str, Any]:
    """Return the report of a rank's part."""
    path = directory / f"rank_{rank}" / "export_report.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, **{name: found[name] for name in _OF_ALL_RANKS}}
    except (OSError, ValueError, KeyError, TypeError):
        raise ArgumentError(
            f"expected the part of rank {rank} with its report {path}, got none: export the model "
            "again"
        ) from None


def parts_for(directory: Path, given: int) -> int:
    """Return how many parts a model has, 0 if it is whole; ArgumentError for other ranks."""
    parts = count_of_parts(directory)
    if given != max(parts, 1):
        holds = f"the parts of {parts} ranks" if parts else "a model that is not divided"
        raise ArgumentError(
            f"expected --ranks {max(parts, 1)} for {directory}, which holds {holds}, got {given}"
        )
    return parts


def part_of(directory: Path) -> Path:
    """Return this rank's directory of a model that was exported for several ranks.

    Raises ArgumentError in a process that is no rank, and in every rank if there are more or fewer
    than parts: the others would wait for the one that is refused, or that is not there.
    """
    parts = count_of_parts(directory)
    rank = rank_of_process()
    if rank is None:
        raise ArgumentError(
            f"{directory} holds the parts of {parts} ranks: start them by `onnxruntime-npu "
            f"generate --ranks {parts}`, or by `mpiexec -n {parts}` and a script"
        )
    count = _count_of_ranks()
    if count is None and rank >= parts:
        count = rank + 1  # at least
    if count is not None and count != parts:
        raise ArgumentError(
            f"expected {parts} ranks for {directory}, which holds as many parts, got {count}: "
            f"start them by `mpiexec -n {parts}`"
        )
    return directory / f"rank_{rank}"


def joined(providers: Sequence[Any], report: Mapping[str, Any]) -> list[Any]:
    """Return the providers with the options by which a rank's part finds the others.

    Options that are given stay. A whole model's providers are returned as they are.
    """
    if report.get("rank") is None:
        return list(providers)
    needed = {
        "communicator": "mpi",
        "groups": str(report["group"]),
        "rank": str(report["rank"]),
        "world_size": str(max(report["tensor_parallel"], report.get("expert_parallel", 1))),
    }
    found = []
    for provider in providers:
        name, options = (provider, {}) if isinstance(provider, str) else provider
        found.append((name, {**needed, **options}) if name == get_ep_name() else provider)
    return found


def run_ranks(ranks: int, arguments: Sequence[str]) -> int:
    """Run the command line in so many processes, which share this one's output; return its code.

    Raises ArgumentError without a launcher.
    """
    command = [*launcher(ranks), sys.executable, "-m", "onnxruntime_npu"]
    return subprocess.run([*command, *arguments], check=False).returncode


def launcher(ranks: int) -> list[str]:
    """Return the command before that of a rank; ArgumentError if there is none."""
    if not MPIEXEC.is_file():
        raise ArgumentError(f"--ranks {ranks} needs a launcher of processes: pip install mpich")
    return [str(MPIEXEC), "-n", str(ranks)]
