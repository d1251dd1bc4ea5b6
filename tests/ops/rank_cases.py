"""What each rank of test_ranks.py does; writes the outcome of each case as JSON.

Run by ``mpiexec -n N python rank_cases.py FOLDER OPERATOR [CASE...]``: eager calls exchange data
over torch's group "hccl", sessions over MPI. The operator is the one in which a rank is lost.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import onnxruntime_npu
import rank_examples
import rank_losses
import rank_overlaps
import rank_refusals
import rank_results
import torch.distributed as dist
from onnxruntime_npu.opdef import Op
from rank_calls import OPS, RANK, SIZE, TIMEOUT


def cases(losing: Op) -> dict[str, Callable[[], None]]:
    """Return all cases by name, in their order: the first has one group only, the last kills."""
    parts = (rank_refusals, rank_results, rank_examples, rank_overlaps)
    together = [case for part in parts for case in part.CASES]
    losses = {case.__name__: functools.partial(case, losing) for case in rank_losses.CASES}
    return {case.__name__: case for case in together} | losses


def tell(outcomes: Path, name: str, function: Callable[[], None]) -> None:
    try:
        function()
        outcome = ""
    except Exception:
        outcome = traceback.format_exc()
    with outcomes.open("a") as file:
        file.write(json.dumps({"case": name, "rank": RANK, "outcome": outcome}) + "\n")


def main(folder: Path, losing: Op, names: list[str]) -> None:
    onnxruntime_npu.torch_device.register()
    timeout = datetime.timedelta(seconds=TIMEOUT)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("hccl", init_method=store, rank=RANK, world_size=SIZE, timeout=timeout)
    known = cases(losing)
    for name in names or known:
        tell(folder / f"rank{RANK}", name, known[name])
    os._exit(0)  # without a farewell to the groups: some are lost


if __name__ == "__main__":
    main(Path(sys.argv[1]), OPS[sys.argv[2]], sys.argv[3:])
