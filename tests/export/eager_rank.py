"""One rank: generates greedily by torch's operators on the device; writes the tokens.

Arguments: a folder for what the ranks tell each other, prompts, the number of new tokens, and the
models: "tensor_parallel=MODEL" or "expert_parallel=MODEL", of a kind of tiny model or the directory
of a checkpoint.
"""

import json
import os
import sys
from pathlib import Path

import onnxruntime_npu
import torch
import torch.distributed as dist
from conftest import tiny_model
from onnxruntime_npu.exporter.caches import CacheChoice
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.division import Division
from onnxruntime_npu.exporter.proof import Findings
from onnxruntime_npu.exporter.substitution import substitute

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
WHOLE = {"tensor_parallel": 1, "expert_parallel": 1}


def join(folder: str) -> None:
    """Make torch's group of all ranks."""
    onnxruntime_npu.torch_device.register()
    store = f"file://{folder}/store"
    dist.init_process_group("hccl", init_method=store, rank=RANK, world_size=SIZE)


def generate(model: str, divided: str, prompts: list[list[int]], count: int) -> list[list[int]]:
    """Return what this rank's part generates, on the device with a growing cache."""
    division = Division(**{**WHOLE, divided: SIZE})
    group = dist.new_group()._get_backend(torch.device("npu"))
    group._set_hccl_comm_name(division.group)
    whole = load_checkpoint(model).model if Path(model).is_dir() else tiny_model(model)
    part = division.part_of(substitute(whole)[0], RANK, Findings())
    interface = CacheChoice("dynamic", False, "last").interface(part).eval().npu()
    rows = []
    with torch.no_grad(), torch.device("npu"):
        for prompt in prompts:
            row, inputs = [], interface.prompt(torch.tensor([prompt]))
            for total in range(len(prompt) + 1, len(prompt) + 1 + count):
                logits, *cache = interface(*inputs)
                assert logits.device.type == "npu"
                row.append(int(logits[0, -1].argmax()))
                seen = torch.ones(1, total, dtype=torch.int64)
                inputs = torch.tensor([row[-1:]]), seen, torch.tensor([[total - 1]]), cache
            rows.append(row)
    return rows


def write(folder: str, rows: object) -> None:
    """Write what this rank has generated, and wait for the others."""
    Path(folder, f"tokens_{RANK}.json").write_text(json.dumps(rows))
    dist.barrier()


if __name__ == "__main__":
    folder, prompts, new_tokens, *models = sys.argv[1:]
    join(folder)
    made = []
    for given in models:
        divided, _, model = given.partition("=")
        made.append(generate(model, divided, json.loads(prompts), int(new_tokens)))
    assert not onnxruntime_npu.torch_device.fallback_counts()
    write(folder, made)
