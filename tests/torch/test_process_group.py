"""torch.distributed on npu: the process group ``hccl``, by ranks in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this torch has no gloo, which hccl exchanges data with", allow_module_level=True)

import hccl_ranks  # noqa: E402

SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def outcomes(request):
    """Of each case the outcome on each rank: nothing, or a traceback."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", str(request.param), hccl_ranks.__file__]
    ended = subprocess.run(
        launch,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            told = json.loads(line)
            found[told["case"]][told["rank"]] = told["outcome"]
    return request.param, found, ended.stderr


@pytest.mark.parametrize("case", [case.__name__ for case in hccl_ranks.CASES])
def test_process_group(outcomes, case):
    size, found, log = outcomes
    assert sorted(found[case]) == list(range(size)), log[-4000:]
    assert set(found[case].values()) == {""}, "\n".join(found[case].values())
