"""Greedy tokens of an exported directory from onnxruntime-genai's own generator and engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

NPU = "NPUExecutionProvider"


def open_in_genai(directory: Path, provider: str | tuple[str, dict[str, str]]) -> og.Model:
    """Open a directory with a provider, or one and its options; the fixture ``genai`` is needed."""
    config = og.Config(str(directory))
    config.clear_providers()
    name, settings = (provider, {}) if isinstance(provider, str) else provider
    if name == NPU:
        config.append_provider(name)
    for key, value in settings.items():
        config.set_provider_option(name, key, value)
    return og.Model(config)


def generator_tokens(model: og.Model, prompt: list[int], count: int) -> list[int]:
    """Return up to ``count`` tokens after a prompt, without the stop token."""
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(do_sample=False, max_length=len(prompt) + count)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return list(generator.get_sequence(0))[len(prompt) :]


def engine_tokens(
    model: og.Model, prompts: list[list[int]], count: int
) -> tuple[list[list[int]], int]:
    """Return up to ``count`` tokens after each prompt, without the stop token, and the runs.

    All requests begin before the first run.
    """
    engine = og.Engine(model)
    requests: list[Any] = []
    for prompt in prompts:
        request = engine.create_request()
        turn = og.TurnOptions(request)
        turn.set_do_sample(False)
        turn.set_max_generated_tokens(count)
        request.begin_turn(np.array(prompt, np.int32), turn)
        requests.append(request)
    tokens: list[list[int]] = [[] for _ in requests]
    events, runs = engine.create_event_buffer(64), 0
    while engine.has_pending_requests():
        runs += 1
        for event in engine.run(events):
            assert not event.flags & og.EngineEventFlags.FAILED
            if event.flags & og.EngineEventFlags.TOKEN:
                tokens[requests.index(event.request)].append(event.token)
    return tokens, runs
