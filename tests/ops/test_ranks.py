"""Operators that communicate, by ranks in processes of their own: all cases in one start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

Outcomes = dict[str, dict[int, str]]  # of each case and rank: nothing, or a traceback
torch = pytest.importorskip("torch")
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo, which hccl exchanges data with", allow_module_level=True)
if not MPIEXEC.exists():
    pytest.skip("expected mpiexec of the package mpich", allow_module_level=True)

from rank_expectations import EXPECTED  # noqa: E402

SCRIPT = Path(__file__).with_name("rank_cases.py")
LOSSES = ["a_stopped_rank_is_named", "a_late_rank_is_named", "a_killed_rank_is_named"]
CASES = [
    "what_one_rank_alone_refuses_fails_on_every_rank",
    "what_the_session_of_one_rank_refuses_fails_on_every_rank",
    "a_group_that_is_none_of_several_fails_on_every_rank",
    "eager_calls_equal_those_of_one_rank",
    "sessions_equal_calls_of_one_rank",
    "many_pieces",
    "experts_with_more_counts_than_an_agreement_tells",
    "examples_of_products",
    "examples_of_products_of_experts",
    "examples_of_tokens_of_experts",
    "a_profile_shows_exchanges_beside_products",
    "ranks_that_disagree_fail_on_every_rank",
    "experts_that_do_not_fit_fail_on_every_rank",
    "wrong_calls_of_each_operator_fail_on_every_rank",
    "sessions_refuse_what_mpi_contradicts",
    *LOSSES,
]
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


def run_ranks(folder: Path, size: int, operator: str, *cases: str) -> tuple[Outcomes, str]:
    """Return the outcomes of rank_cases.py, which loses a rank in the operator, and its output."""
    # mpiexec ends all ranks when one is killed; a shell hides that from it.
    launch = [str(MPIEXEC), "-disable-auto-cleanup", "-n", str(size)]
    launch += ["sh", "-c", 'trap "" USR1; "$@"; exit 0', "rank"]
    ended = subprocess.run(
        [*launch, sys.executable, str(SCRIPT), str(folder), operator, *cases],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ORT_NPU_NUM_THREADS": "1"},
        cwd=SCRIPT.parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: Outcomes = defaultdict(dict)
    for path in folder.glob("rank*"):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            found[told["case"]][told["rank"]] = told["outcome"]
    return found, ended.stdout + ended.stderr


def check(cases: list[str], size: int, found: Outcomes, log: str) -> None:
    """Assert that each rank but a killed one has told of each case that nothing was wrong."""
    wrong = []
    for case in cases:
        told, killed = found[case], {1} if case == "a_killed_rank_is_named" else set()
        wrong += [f"{case}, rank {rank}: {text}" for rank, text in told.items() if text]
        silent = set(range(size)) - killed - told.keys()
        wrong += [f"{case}: nothing of rank {rank}" for rank in silent]
        wrong += [f"{case}: rank {rank} was to be killed" for rank in killed & told.keys()]
    assert not wrong, "\n".join([*wrong, log[-4000:]])


@pytest.mark.parametrize("size", SIZES, ids="{} ranks".format)
def test_ranks(size, tmp_path):
    """One test: of several, each process of the run would start the ranks for its own."""
    check(CASES, size, *run_ranks(tmp_path, size, "npu_mm_all_reduce_base"))


@pytest.mark.slow
@pytest.mark.parametrize("operator", sorted(EXPECTED))
def test_each_operator_names_the_rank_that_it_loses(operator, tmp_path):
    found, log = run_ranks(tmp_path, 4, operator, *LOSSES)
    check(LOSSES, 4, found, log)
