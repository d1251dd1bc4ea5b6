"""The case of exchanges that run beside products, as a profile shows them."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import Maker, Op, Sample
from op_paths import NPU, bind, eager_npu, make_model, run_session
from rank_calls import OPS, RANK, SIZE, group_name, provider_session
from rank_expectations import WITHOUT_PRODUCTS

# On a machine with other work, all exchanges of a call may run before its first product has a core.
TRIES = 5


def large_call(op: Op, group: str) -> Sample:
    """Return a call of this rank that is cut into pieces, whose products take milliseconds."""
    make = Maker("float32", seed=RANK)
    experts = 4
    if "gmm_weight" in bind(op, next(op.sample_function(make))):
        rows = [256] * (SIZE * experts)
        x = make(sum(rows), 2048)
        return Sample(x, make(experts, 2048, 1024, scale=0.02), group, SIZE, rows, rows)
    world = () if op.name == "npu_mm_all_reduce_base" else (SIZE,)
    return Sample(make(2048, 2048), make(2048, 1024, scale=0.02), group, *world)


def spans(call: Callable[[], object], folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return when the parts of the launches ran, by their names in torch's profile."""
    call()  # connects the ranks and packs weights
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        dist.barrier()  # a profile may begin a second later on one rank than on another
        call()
    path = folder / f"profile{RANK}.json"
    profile.export_chrome_trace(str(path))
    found: dict[str, list[tuple[float, float]]] = {"exchange": [], "product": []}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["name"] in found and event.get("ph") == "X":
            found[event["name"]].append((event["ts"], event["ts"] + event["dur"]))
    return {name: sorted(times) for name, times in found.items()}


def a_profile_shows_exchanges_beside_products() -> None:
    """Of each operator of products, eagerly and in sessions; how much is for the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        for op in (op for name, op in OPS.items() if name not in WITHOUT_PRODUCTS):
            mine, of_world = large_call(op, group_name()), large_call(op, "world")
            session = provider_session(make_model(op, of_world, body=False))
            calls = {
                "eager": lambda op=op, mine=mine: eager_npu(op, mine),
                "session": lambda op=op, s=session, m=of_world: run_session(s, NPU, op, m),
            }
            for path, call in calls.items():
                on_every_rank(functools.partial(overlaps, call, Path(folder)), (op.name, path))


def overlaps(call: Callable[[], object], folder: Path) -> bool:
    """Whether an exchange of the call ran beside a product."""
    seen = spans(call, folder)
    # The first exchange is the ranks' agreement on the call.
    exchanges, products = seen["exchange"][1:], seen["product"]
    assert len(exchanges) >= 4 and len(products) >= 4, seen
    return any(
        begin < product_end and product_begin < end
        for begin, end in exchanges
        for product_begin, product_end in products
    )


def on_every_rank(seen: Callable[[], bool], what: object) -> None:
    """Assert that each rank sees it in one of some tries, which all of them make together."""
    here = False
    for _ in range(TRIES):
        here = seen() or here
        everywhere: list[bool] = [False] * SIZE
        dist.all_gather_object(everywhere, here)
        if all(everywhere):
            return
    raise AssertionError((what, everywhere))


CASES = (a_profile_shows_exchanges_beside_products,)
