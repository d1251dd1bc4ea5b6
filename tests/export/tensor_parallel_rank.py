"""One rank: generates with the models named in the arguments, and writes what it has computed."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from onnxruntime_npu.generation import CausalLM


class Forced:
    """A sampler that returns given continuations and records the logits."""

    def __init__(self, continuations):
        self.logits = []
        self._continuations = np.array(continuations, np.int64)

    def __call__(self, logits):
        self.logits.append(np.array(logits, np.float32))
        return self._continuations[:, len(self.logits) - 1]


prompts, continuations = json.loads(sys.argv[1])
for place in sys.argv[2:]:
    model = CausalLM(place)
    model.stop_tokens = frozenset()
    sampler = Forced(continuations)
    model.generate_tokens(prompts, max_new_tokens=len(continuations[0]), sampler=sampler)
    rank = os.environ["PMI_RANK"]
    np.save(Path(place) / f"logits_{rank}.npy", np.stack(sampler.logits, axis=1))
