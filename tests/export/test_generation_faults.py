"""Failing backend calls during generation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from onnxruntime_npu.generation import CausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "provider"))
import fault_trials

PROMPTS = [[5, 7, 9], [3]]


def generation() -> Callable[[], Any]:
    """Generate with a model that is already loaded."""
    model = CausalLM(os.environ["NPU_TEST_MODEL"])
    expected = model.generate_tokens(PROMPTS, max_new_tokens=3).tokens

    def work() -> None:
        assert model.generate_tokens(PROMPTS, max_new_tokens=3).tokens == expected

    return work


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_every_injected_fault_is_reported_and_recovered(exported, monkeypatch, cache):
    _, directory, _ = exported("llama", cache=cache)
    monkeypatch.setenv("NPU_TEST_MODEL", str(directory))
    fault_trials.in_a_process(__file__, "generation")


if __name__ == "__main__":
    fault_trials.main({"generation": generation})
