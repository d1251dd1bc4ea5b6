"""One rank: generates greedily by sessions of its parts, and eagerly; writes the tokens.

Arguments: a folder for what the ranks tell each other, the prompts, the kind of the eager model,
and the exported models.
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
from onnxruntime_npu.exporter.expert_parallel import ExpertsOfRank, with_own_experts
from onnxruntime_npu.exporter.proof import Findings
from onnxruntime_npu.exporter.substitution import substitute
from onnxruntime_npu.generation import CausalLM

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
NEW_TOKENS = 8


def of_session(place: str, prompts: list[list[int]]) -> list[list[int]]:
    model = CausalLM(place)
    model.stop_tokens = frozenset()
    generated = model.generate_tokens(prompts, max_new_tokens=NEW_TOKENS)
    return [list(map(int, row)) for row in generated.tokens]


def eagerly(kind: str, prompts: list[list[int]]) -> list[list[int]]:
    """Generate by torch's operators, without a cache, over torch's process group."""
    whole, _ = substitute(tiny_model(kind))
    decoder = with_own_experts(whole, RANK, SIZE, Findings())
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
    for module in decoder.modules():
        if isinstance(module, ExpertsOfRank):
            module.group = group.get_hccl_comm_name(RANK)
    interface = CacheChoice("dynamic", False, "last").interface(decoder).eval()
    rows = []
    with torch.no_grad():
        for prompt in prompts:
            tokens = list(prompt)
            for _ in range(NEW_TOKENS):
                logits, *_ = interface(*interface.prompt(torch.tensor([tokens])))
                tokens.append(int(logits[0, -1].argmax()))
            rows.append(tokens[len(prompt) :])
    return rows


folder, prompts, kind, *places = sys.argv[1:]
onnxruntime_npu.torch_device.register()
dist.init_process_group("hccl", init_method=f"file://{folder}/store", rank=RANK, world_size=SIZE)
made = [of_session(place, json.loads(prompts)) for place in places]
made.append(eagerly(kind, json.loads(prompts)))
Path(folder, f"tokens_{RANK}.json").write_text(json.dumps(made))
dist.barrier()
