"""Profiles of the CPU's operators and npu's launches in one Chrome trace, on one clock."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from .. import _C, torch_device
from ..errors import ArgumentError, DeviceError
from ..npu import mark_recording
from ._trace import finish
from .experimental_config import _ExperimentalConfig

__all__ = [
    "ProfilerActivity",
    "analyse",
    "profile",
    "supported_activities",
    "tensorboard_trace_handler",
]

torch_device.register()


class ProfilerActivity:
    """What a profile records: operators on the CPU, launches on npu."""

    CPU = torch.profiler.ProfilerActivity.CPU
    NPU = torch.profiler.ProfilerActivity.PrivateUse1


def supported_activities() -> set[Any]:
    """Return ``{ProfilerActivity.CPU, ProfilerActivity.NPU}``."""
    return {ProfilerActivity.CPU, ProfilerActivity.NPU}


class _NpuTrace:
    """Changes to torch's profiles: marks, names and metadata in the trace."""

    activities: set[Any]
    use_device: str | None

    def __init__(
        self,
        *,
        activities: Iterable[Any] | None = None,
        experimental_config: _ExperimentalConfig | None = None,
        **options: Any,
    ) -> None:
        chosen = supported_activities() if activities is None else set(activities)
        if not chosen or not chosen <= supported_activities():
            raise ArgumentError(
                "[profiler.profile] expected activities of ProfilerActivity.CPU and NPU, got "
                f"{sorted(map(str, chosen))}"
            )
        if not isinstance(experimental_config, (_ExperimentalConfig, type(None))):
            raise TypeError(
                "[profiler.profile] expected experimental_config to be a torch_npu.profiler."
                f"_ExperimentalConfig, got {type(experimental_config).__name__}"
            )
        for name in ("schedule", "on_trace_ready"):
            if options.get(name) is not None and not callable(options[name]):
                raise TypeError(
                    f"[profiler.profile] expected {name} to be callable, got {options[name]!r}"
                )
        self._config = experimental_config or _ExperimentalConfig()
        self._metadata: dict[str, Any] = {}
        self._marks: list[dict[str, Any]] = []
        self._trace: dict[str, Any] | None = None
        if options.get("with_stack"):  # without it torch keeps no stacks for export_stacks
            options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
        super().__init__(activities=chosen, **options)  # type: ignore[call-arg]

    def start_trace(self) -> None:
        if ProfilerActivity.NPU in self.activities and _C.launch_trace_runs():
            raise RuntimeError("a profile runs already: end it before the next one")
        self._trace = None
        super().start_trace()  # type: ignore[misc]
        if self._config.mstx:
            mark_recording.start()

    def stop_trace(self) -> None:
        try:
            super().stop_trace()  # type: ignore[misc]
        except (
            DeviceError
        ):  # a kernel's error: torch waits for the device before it ends the profile
            super().stop_trace()  # type: ignore[misc]
            raise
        finally:
            self._take_marks()

    def _take_marks(self) -> None:
        offset = _C.steady_to_system_ns() / 1000
        self._marks = [
            {**mark, "ts": mark["ts"] + offset}
            for mark in mark_recording.stop()
            if self._config.wants_mark(mark["cat"])
        ]

    def export_chrome_trace(
        self, path: str | os.PathLike[str], use_python_export: bool = False
    ) -> None:
        """Write the last cycle as JSON, which Perfetto opens; compressed for a name with .gz.

        Args:
            path: the file.
            use_python_export: let Python write torch's part; see torch.

        Raises:
            ArgumentError: ``path`` ends neither in .json nor in .json.gz.
            RuntimeError: nothing was recorded yet.
        """
        path = os.fspath(path)
        if not path.endswith((".json", ".json.gz")):
            raise ArgumentError(
                f"[profiler.export_chrome_trace] expected a name that ends in .json, got {path!r}"
            )
        if self._trace is None:
            self._trace = self._read_trace(use_python_export)
        with gzip.open(path, "wt") if path.endswith(".gz") else open(path, "w") as file:
            json.dump(self._trace, file)

    def _read_trace(self, use_python_export: bool) -> dict[str, Any]:
        if getattr(self, "profiler", None) is None:
            raise RuntimeError(
                "[profiler.export_chrome_trace] expected a profile that recorded, got one that "
                "was not started or whose schedule has not come to its active steps"
            )
        with tempfile.TemporaryDirectory() as folder:  # torch can write a cycle only once
            written = os.path.join(folder, "trace.json")
            super().export_chrome_trace(written, use_python_export)  # type: ignore[misc]
            with open(written) as file:
                trace = json.load(file)
        finish(trace, self._marks, self._metadata)
        return trace

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace under ``key``."""
        self._metadata[_text("add_metadata", key)] = _text("add_metadata", value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace under ``key``.

        Raises:
            ArgumentError: ``value`` is not valid JSON.
        """
        try:
            self._metadata[_text("add_metadata_json", key)] = json.loads(
                _text("add_metadata_json", value)
            )
        except json.JSONDecodeError as error:
            raise ArgumentError(
                f"[profiler.add_metadata_json] expected JSON, got {value!r}: {error}"
            ) from None


class _KinetoProfile(_NpuTrace, torch.profiler._KinetoProfile):
    """A profile that is started and stopped by hand, without a schedule."""


class profile(_NpuTrace, torch.profiler.profile):
    """``torch.profiler.profile`` with the launches of npu alongside the CPU's operators.

    Args:
        activities: of ProfilerActivity; both by default.
        schedule: which steps are recorded; all by default. See ``torch_npu.profiler.schedule``.
        on_trace_ready: called with the profile at the end of each cycle.
        record_shapes, profile_memory, with_stack, with_flops, with_modules: as torch's.
        experimental_config: a ``torch_npu.profiler._ExperimentalConfig``.

    Raises:
        ArgumentError: invalid activities.
        TypeError: a schedule, handler or config of another type.
        RuntimeError: another profile of npu is running.
    """

    _running = False

    def start(self) -> None:
        """Start with the schedule's action for step 0."""
        self._running = True
        super().start()

    def stop(self) -> None:
        """Stop; raises a kernel's error that was not reported yet."""
        if self._running:
            self._running = False
            super().stop()

    def step(self) -> None:
        """Begin the next step; only warns if the profile is not running."""
        if not self._running:
            warnings.warn("[profiler.step] the profile does not run; no effect", stacklevel=2)
            return
        super().step()


def tensorboard_trace_handler(
    dir_name: str | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
) -> Callable[[Any], None]:
    """Return a handler that writes ``dir_name/<worker>.<time>.pt.trace.json``, a file per cycle.

    Args:
        dir_name: the folder, created if needed; the current one by default.
        worker_name: the host's name and the process id by default.
        analyse_flag, async_mode: without effect: there is nothing to analyse afterwards.
    """
    folder = os.getcwd() if dir_name is None else os.fspath(dir_name)
    return torch.profiler.tensorboard_trace_handler(folder, worker_name)


def analyse(profiler_path: str | os.PathLike[str], max_process_number: int = 1) -> None:
    """Only check the folder: a trace of ``tensorboard_trace_handler`` is complete when written.

    Raises:
        ArgumentError: no trace in the folder ``profiler_path``.
    """
    if not any(Path(profiler_path).rglob("*.pt.trace.json*")):
        raise ArgumentError(
            "[profiler.analyse] expected a folder with traces (*.pt.trace.json), got "
            f"{os.fspath(profiler_path)!r}"
        )


def _text(function: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"[profiler.{function}] expected a str, got {type(value).__name__}")
    return value
