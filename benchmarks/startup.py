#!/usr/bin/env python3
"""Creation time of a session and its peak resident memory, relative to its weights and cache.

Peak resident memory is the max growth of the process from before the session's creation until after
a prefill and a few decode steps, including packing, arenas and mapped files.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import harness
import models
from llm_engines import NpuModel, prompt

PROMPT, STEPS = 512, 8


def _status(field: str) -> int:
    """A size from this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


class Session:
    """Creates one session and measures its cost."""

    def __init__(self, directory: str, threads: int, capacity: int) -> None:
        import numpy as np
        import onnxruntime_npu

        self.directory = directory
        self.make = functools.partial(NpuModel, directory, threads, capacity)
        onnxruntime_npu.ortvalue_from_numpy(np.zeros(1))  # starts the device
        prompt(PROMPT, 100)  # loads NumPy's generators, 5 MiB that belong to the benchmark

    def cost(self) -> dict[str, Any]:
        """Seconds of creation; bytes of weights, cache and peak growth."""
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status("VmRSS")
        start = time.perf_counter()
        model = self.make()
        seconds = time.perf_counter() - start
        model.decode(PROMPT, STEPS)
        cache = sum(cache.tensor_size_in_bytes() for cache in model.steps.caches)
        weights = sum(path.stat().st_size for path in Path(self.directory).glob("*.data"))
        peak = _status("VmHWM") - before
        return {"seconds": seconds, "weights": weights, "cache": cache, "peak": peak}


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32", "bfloat16"], rounds=3)
    names = list(models.MODELS)
    parser.add_argument("--models", nargs="+", default=names, choices=names, help="to run")
    arguments = harness.parse_arguments(parser)
    rows = []
    for name in arguments.models:
        for dtype in arguments.dtypes:
            model = models.MODELS[name]
            directory = str(models.exported(model, dtype, arguments.out))
            make = functools.partial(Session, directory, arguments.threads, models.CAPACITY)
            costs = []
            for _ in range(arguments.rounds):
                engine = harness.Engine(name, make)
                costs.append(engine.call("cost"))
                engine.close()
            best = min(costs, key=lambda cost: cost["seconds"])
            worst = max(cost["peak"] for cost in costs)
            rows.append({"name": f"{name} {dtype}", **best, "peak": worst})
            print(json.dumps(rows[-1]), flush=True)
    (arguments.out / "startup.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
