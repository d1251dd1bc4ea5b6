"""Operators that communicate, by ranks in processes of their own: all cases in one start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo, which hccl exchanges data with", allow_module_level=True)
if not MPIEXEC.exists():
    pytest.skip("expected mpiexec of the package mpich", allow_module_level=True)

SCRIPT = Path(__file__).with_name("rank_cases.py")
CASES = [
    "eager_calls_equal_those_of_one_rank",
    "sessions_equal_calls_of_one_rank",
    "many_pieces",
    "a_profile_shows_exchanges_beside_products",
    "ranks_that_disagree_fail_on_every_rank",
    "experts_that_do_not_fit_fail_on_every_rank",
    "sessions_refuse_what_mpi_contradicts",
    "a_stopped_rank_is_named",
    "a_late_rank_is_named",
    "a_killed_rank_is_named",
]
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def outcomes(request, tmp_path_factory):
    """Of each case the outcome on each rank: nothing, or a traceback."""
    folder = tmp_path_factory.mktemp("ranks")
    # mpiexec ends all ranks when one is killed; a shell hides that from it.
    launch = [str(MPIEXEC), "-disable-auto-cleanup", "-n", str(request.param)]
    launch += ["sh", "-c", 'trap "" USR1; "$@"; exit 0', "rank"]
    ended = subprocess.run(
        [*launch, sys.executable, str(SCRIPT), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ORT_NPU_NUM_THREADS": "1"},
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = _read(folder)
    return request.param, found, ended.stdout + ended.stderr


def _read(folder: Path) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for path in folder.glob("rank*"):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found[told["case"]][told["rank"]] = told["outcome"]
    return found


@pytest.mark.parametrize("case", CASES)
def test_ranks(outcomes, case):
    size, found, log = outcomes
    killed = {1} if case == "a_killed_rank_is_named" else set()
    assert sorted(found[case]) == sorted(set(range(size)) - killed), log[-4000:]
    assert set(found[case].values()) == {""}, "\n".join(found[case].values())
