"""``dynamic_profile``: profiles of a running training, requested by a file.

``init(folder)`` writes ``folder/profiler_config.json`` with all keys if it is missing; each
``step()`` of the training checks whether that file changed, and profiles ``active`` steps, after
``warmup`` ones, from ``start_step`` on: -1 is the next step, 0 none.
"""

from __future__ import annotations

import atexit
import json
import os
import warnings
from pathlib import Path
from typing import Any

from .experimental_config import AiCMetrics, ProfilerLevel, _ExperimentalConfig
from .profiler import ProfilerActivity, profile, tensorboard_trace_handler
from .scheduler import Schedule

__all__ = ["init", "set_state", "start", "step"]

_FILE = "profiler_config.json"
_ACTIVITIES = {"CPU": ProfilerActivity.CPU, "NPU": ProfilerActivity.NPU}
_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_DEFAULTS: dict[str, Any] = {
    "activities": ["CPU", "NPU"],
    "prof_dir": "./",
    **dict.fromkeys(_SWITCHES, False),
    "active": 1,
    "warmup": 0,
    "start_step": 0,
    "is_rank": False,
    "rank_list": [],
    "experimental_config": {"profiler_level": "Level0", "aic_metrics": "AiCoreNone"},
    "metadata": {},
}


class _DynamicProfile:
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.file = Path(folder) / _FILE
        self.step_number = 0
        self._wanted: dict[str, Any] | None = None
        self._running: profile | None = None
        self._steps_left = 0
        self._changed_ns = self._modified()
        if self._changed_ns is None:
            self.file.write_text(json.dumps(_DEFAULTS, indent=4))
            self._changed_ns = self._modified()

    def step(self) -> None:
        self.step_number += 1
        modified = self._modified()
        if modified is not None and modified != self._changed_ns:
            self._changed_ns = modified
            self._wanted = _read(self.file)
        if self._running is not None:
            self._running.step()
            self._steps_left -= 1
            if self._steps_left == 0:
                self.stop()
        elif self._wanted is not None and self._is_time(self._wanted["start_step"]):
            self.begin(self._wanted)

    def begin(self, config: dict[str, Any]) -> None:
        if self._running is not None:
            warnings.warn("[dynamic_profile] a profile runs already; no effect", stacklevel=4)
            return
        self._wanted = None
        if config["is_rank"] and int(os.environ.get("RANK", "0")) not in config["rank_list"]:
            return
        self._running = _profile(config)
        self._steps_left = config["warmup"] + config["active"]
        self._running.start()

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _is_time(self, start: int) -> bool:
        if 0 < start < self.step_number:
            warnings.warn(
                f"[dynamic_profile] expected start_step >= {self.step_number}, the current step, "
                f"got {start}; nothing is profiled",
                stacklevel=4,
            )
        if 0 <= start < self.step_number:
            self._wanted = None
        return start in (-1, self.step_number)

    def _modified(self) -> int | None:
        try:
            return self.file.stat().st_mtime_ns
        except FileNotFoundError:
            return None


_state: _DynamicProfile | None = None


def init(path: str | os.PathLike[str]) -> None:
    """Watch ``path/profiler_config.json`` from now on; a second call only warns.

    Raises:
        OSError: the folder does not exist, or cannot be written.
    """
    global _state
    if _state is not None:
        warnings.warn("[dynamic_profile] init was called before; no effect", stacklevel=2)
        return
    _state = _DynamicProfile(path)
    atexit.register(_state.stop)


def step() -> None:
    """Mark the end of a training step."""
    _initialised().step()


def start(config_path: str | os.PathLike[str] | None = None) -> None:
    """Profile from now on, as configured by a file; by default that of ``init``."""
    state = _initialised()
    config = _read(Path(config_path) if config_path else state.file)
    if config is not None:
        state.begin(config)


def set_state(state_step: dict[str, int]) -> None:
    """Continue to count steps from ``state_step["cur_step"]``, as after a resume.

    Raises:
        ValueError: it is no int from 0.
        RuntimeError: ``init`` was not called.
    """
    number = state_step.get("cur_step", 0)
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"[dynamic_profile] expected cur_step >= 0, got {number!r}")
    _initialised().step_number = number


def _initialised() -> _DynamicProfile:
    if _state is None:
        raise RuntimeError("[dynamic_profile] expected init(path) before any other call")
    return _state


def _read(file: Path) -> dict[str, Any] | None:
    """Return the configuration with defaults; None, with a warning, if it is invalid."""
    try:
        config = {**_DEFAULTS, **json.loads(file.read_text())}
        for name, least in (("active", 1), ("warmup", 0), ("start_step", -1)):
            if not isinstance(config[name], int) or config[name] < least:
                raise ValueError(f"expected {name} >= {least}, got {config[name]!r}")
        if not set(config["activities"]) <= set(_ACTIVITIES):
            raise ValueError(f"expected activities of CPU and NPU, got {config['activities']}")
    except (OSError, TypeError, ValueError) as error:
        warnings.warn(f"[dynamic_profile] {file}: {error}; nothing is profiled", stacklevel=4)
        return None
    return config


def _profile(config: dict[str, Any]) -> profile:
    options = {name: value for name, value in config["experimental_config"].items() if value}
    if "profiler_level" in options:
        options["profiler_level"] = getattr(ProfilerLevel, options["profiler_level"])
    if "aic_metrics" in options:
        options["aic_metrics"] = getattr(AiCMetrics, options["aic_metrics"])
    made = profile(
        activities=[_ACTIVITIES[name] for name in config["activities"]],
        schedule=Schedule(wait=0, warmup=config["warmup"], active=config["active"], repeat=1),
        on_trace_ready=tensorboard_trace_handler(config["prof_dir"]),
        experimental_config=_ExperimentalConfig(**options),
        **{name: bool(config[name]) for name in _SWITCHES},
    )
    for key, value in config["metadata"].items():
        made.add_metadata_json(str(key), json.dumps(value))
    return made
