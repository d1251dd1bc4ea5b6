"""The process of the engine: ``python -m …engine_process FD DIR PROVIDER DEVICE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnxruntime_genai as og

from .. import _C
from ..sampling import has_sampler
from ..session.provider_library import get_ep_name, get_library_path
from .batch import Batch
from .channel import Channel
from .child_process import Inbox, serve_connection
from .engine_messages import Ready, Step, Submit
from .lane import Lane, take_messages, warm_up
from .logits_lane import LogitsLane
from .logits_model import open_logits_model

_CPU = "CPUExecutionProvider"
_WAKE = "a model has been opened"
# Requests that only draw from the whole vocabulary go where the device draws, unless the longest
# answer would reserve more than this part of the cache there.
_SHARE = 1 / 8


def _run(channel: Channel, directory: Path, provider: str, device: int) -> None:
    if provider == get_ep_name():
        # onnxruntime-genai brings an onnxruntime of its own, which has to learn of the provider.
        og.register_execution_provider_library(provider, get_library_path())
    settings = json.loads((directory / "genai_config.json").read_text(encoding="utf-8"))
    blocks = settings["engine"]["dynamic_batching"]
    engine = og.Engine(open_model(directory, provider, device))
    batch = Batch(engine, blocks["block_size"])
    warm_up(batch)
    limits = engine.get_capabilities()
    # The engine counts a last token that is not cached, which an answer of no tokens does not have.
    room = blocks["num_blocks"] * blocks["block_size"]
    channel.send(
        Ready(
            max_batch=limits.configured_max_batch_size,
            max_length=min(limits.max_request_length, room),
            cache_blocks=blocks["num_blocks"],
            vocabulary=settings["model"]["vocab_size"],
        )
    )
    inbox = Inbox(channel)
    logits_lane = LogitsLane(
        lambda: open_logits_model(directory, settings, provider, device),
        lambda: inbox.put(_WAKE),
    )
    draws = provider == get_ep_name() and has_sampler(directory)
    most_drawn = _SHARE * blocks["num_blocks"] * blocks["block_size"] if draws else 0

    def lane_of(submitted: Submit) -> Lane:
        sampling = submitted.sampling
        drawn = sampling.draws_from_all and submitted.longest <= most_drawn
        # The engine has no adapters.
        own = sampling.needs_logits or drawn or submitted.adapter is not None
        return logits_lane if own else batch

    while take_messages(inbox, (batch, logits_lane), lane_of):
        # One after the other: both have the whole device. Also when all requests were cancelled:
        # nothing is in use then.
        channel.send(Step.together([lane.step() for lane in (batch, logits_lane) if lane.busy]))


def open_model(directory: Path, provider: str, device: int = 0) -> Any:
    """Open an exported directory in onnxruntime-genai, on one of the provider's devices.

    Raises ValueError for a device that does not exist.
    """
    og.disable_telemetry_events()
    config = og.Config(str(directory))
    config.clear_providers()
    if provider != _CPU:
        config.append_provider(provider)
    if provider == get_ep_name():
        if not 0 <= device < (count := _C.device_count()):
            raise ValueError(f"expected a device from 0 to {count - 1}, got {device}")
        # Otherwise a session gets all devices, which it refuses if there are several.
        config.set_decoder_provider_options_hardware_device_id(provider, device)
    return og.Model(config)


if __name__ == "__main__":
    sys.exit(serve_connection(sys.argv[1:], _run))
