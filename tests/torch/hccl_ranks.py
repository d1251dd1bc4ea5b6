"""What each rank of test_process_group.py does; prints the outcome of each case as JSON.

Run as ``python -m torch.distributed.run --nproc-per-node N hccl_ranks.py``.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback

import hccl_calls
import hccl_collectives
import hccl_messages
import hccl_models
import onnxruntime_npu
import torch
import torch.distributed as dist
from hccl_case import fails, same


def a_rank_that_ends_is_named(rank, size):  # the last case: the group is lost
    dist.barrier()
    if rank == 1:
        return
    x = torch.ones(4, device="npu")
    fails(lambda: dist.all_reduce(x), f"[hccl] all_reduce on rank {rank} of {size}", "from rank 1")
    fails(lambda: dist.broadcast(x, 0), f"[hccl] broadcast on rank {rank}", "from rank 1")
    same(x + 1, torch.full((4,), 2.0))  # the device is as good as before


PARTS = (hccl_collectives, hccl_messages, hccl_calls, hccl_models)
CASES = (*(case for part in PARTS for case in part.CASES), a_rank_that_ends_is_named)


def main() -> None:
    onnxruntime_npu.torch_device.register()
    dist.init_process_group("hccl", timeout=datetime.timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    for function in CASES:
        try:
            function(rank, size)
            outcome = ""
        except Exception:
            outcome = traceback.format_exc()
        line = json.dumps({"case": function.__name__, "rank": rank, "outcome": outcome}) + "\n"
        os.write(sys.stdout.fileno(), line.encode())  # at once, between those of other ranks
    os._exit(0)  # without a farewell to the group, as a rank that dies


if __name__ == "__main__":
    main()
