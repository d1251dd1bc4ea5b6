"""One rank: generates greedily by torch's operators with its part of a Llama; writes the tokens.

Arguments: a folder for what the ranks tell each other, the prompts, the number of new tokens.
"""

import json
import os
import sys
from pathlib import Path

import onnxruntime_npu
import torch
import torch.distributed as dist
from conftest import tiny_model
from onnxruntime_npu.exporter import tensor_parallel
from onnxruntime_npu.exporter.caches import CacheChoice
from onnxruntime_npu.exporter.divided_linear import GROUP
from onnxruntime_npu.exporter.proof import Findings
from onnxruntime_npu.exporter.substitution import substitute

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])

folder, prompts, new_tokens = sys.argv[1:]
onnxruntime_npu.torch_device.register()
dist.init_process_group("hccl", init_method=f"file://{folder}/store", rank=RANK, world_size=SIZE)
group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
group._set_hccl_comm_name(GROUP)
whole, _ = substitute(tiny_model("llama"))
part = tensor_parallel.part_of(whole, RANK, SIZE, Findings())
interface = CacheChoice("dynamic", False, "last").interface(part).eval()
rows = []
with torch.no_grad():
    for prompt in json.loads(prompts):
        tokens = list(prompt)
        for _ in range(int(new_tokens)):
            logits, *_ = interface(*interface.prompt(torch.tensor([tokens])))
            tokens.append(int(logits[0, -1].argmax()))
        rows.append(tokens[len(prompt) :])
Path(folder, f"tokens_{RANK}.json").write_text(json.dumps(rows))
dist.barrier()
