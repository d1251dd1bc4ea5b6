"""The options of torch_npu's profiler for Ascend hardware: checked and stored, few have effect.

``msprof_tx`` (or ``mstx``) and its domains have effect: they add marks of ``torch.npu.mstx`` to
the trace. The host NPU has no counters of AI cores, caches or links for the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from enum import Enum
from typing import Any


class ProfilerLevel(Enum):
    """The level of detail of an Ascend device's reports."""

    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"
    Level_none = "Level_none"


class AiCMetrics(Enum):
    """The AI-core counters that an Ascend device reports."""

    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "PipeUtilization"
    ArithmeticUtilization = "ArithmeticUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    MemoryUB = "MemoryUB"
    ResourceConflictRatio = "ResourceConflictRatio"
    L2Cache = "L2Cache"
    MemoryAccess = "MemoryAccess"


class ExportType(str, Enum):
    """The file formats of torch_npu's reports."""

    Text = "text"
    Db = "db"


class HostSystem(str, Enum):
    """The host metrics that torch_npu records."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


def supported_profiler_level() -> set[ProfilerLevel]:
    """Return the levels that are accepted."""
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[AiCMetrics]:
    """Return the metrics that are accepted."""
    return set(AiCMetrics)


def supported_export_type() -> set[ExportType]:
    """Return the formats that are accepted; the trace is a Chrome trace in each case."""
    return set(ExportType)


def _member(name: str, value: Any, kind: type[Enum], default: Enum) -> Any:
    try:
        return kind(value)
    except ValueError:
        _replaced(name, f"one of {kind.__name__}", value, default)
        return default


def _members(name: str, values: Any, kind: type[Enum]) -> list[Any]:
    if isinstance(values, (list, tuple, set)):
        try:
            return [kind(value) for value in values]
        except ValueError:
            pass
    _replaced(name, f"a list of {kind.__name__}", values, [])
    return []


def _bool(name: str, value: Any, default: bool) -> bool:
    if isinstance(value, bool):
        return value
    _replaced(name, "a bool", value, default)
    return default


def _domains(name: str, value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(domain, str) for domain in value):
        return value
    if value is not None:
        _replaced(name, "a list of str", value, [])
    return []


def _replaced(name: str, expected: str, got: Any, used: Any) -> None:
    warnings.warn(
        f"[profiler._ExperimentalConfig] expected {name} to be {expected}, got {got!r}; "
        f"{used!r} is used",
        stacklevel=5,
    )


class _ExperimentalConfig:
    """Options of a profile; an invalid value is replaced, with a warning, as in torch_npu."""

    def __init__(
        self,
        profiler_level: ProfilerLevel = ProfilerLevel.Level0,
        aic_metrics: AiCMetrics | None = None,
        l2_cache: bool = False,
        msprof_tx: bool = False,
        data_simplification: bool = True,
        record_op_args: bool = False,
        op_attr: bool = False,
        gc_detect_threshold: float | None = None,
        export_type: str | Iterable[str] = ExportType.Text,
        host_sys: Iterable[str] | None = None,
        mstx_domain_include: list[str] | None = None,
        mstx_domain_exclude: list[str] | None = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
        mstx: bool = False,
    ) -> None:
        level = _member("profiler_level", profiler_level, ProfilerLevel, ProfilerLevel.Level0)
        without_cores = level in (ProfilerLevel.Level0, ProfilerLevel.Level_none)
        usual = AiCMetrics.AiCoreNone if without_cores else AiCMetrics.PipeUtilization
        metrics = usual
        if aic_metrics is not None:
            metrics = _member("aic_metrics", aic_metrics, AiCMetrics, usual)
        if without_cores and metrics is not AiCMetrics.AiCoreNone:
            self._warn(f"aic_metrics needs Level1 or Level2, got {level.name}; none are taken")
            metrics = usual
        self.profiler_level, self.aic_metrics = level, metrics
        self.l2_cache = _bool("l2_cache", l2_cache, False)
        self.data_simplification = _bool("data_simplification", data_simplification, True)
        self.record_op_args = _bool("record_op_args", record_op_args, False)
        self.op_attr = _bool("op_attr", op_attr, False)
        self.sys_io = _bool("sys_io", sys_io, False)
        self.sys_interconnection = _bool("sys_interconnection", sys_interconnection, False)
        kinds = [export_type] if isinstance(export_type, str) else export_type
        self.export_type = _members("export_type", kinds, ExportType) or [ExportType.Text]
        self.host_sys = _members("host_sys", host_sys or [], HostSystem)
        self.gc_detect_threshold = gc_detect_threshold
        if gc_detect_threshold is not None and not (
            isinstance(gc_detect_threshold, (int, float)) and gc_detect_threshold >= 0
        ):
            _replaced("gc_detect_threshold", "a number >= 0", gc_detect_threshold, None)
            self.gc_detect_threshold = None
        self._take_marks(
            _bool("msprof_tx", msprof_tx, False) or _bool("mstx", mstx, False),
            _domains("mstx_domain_include", mstx_domain_include),
            _domains("mstx_domain_exclude", mstx_domain_exclude),
        )

    def _take_marks(self, wanted: bool, include: list[str], exclude: list[str]) -> None:
        if (include or exclude) and not wanted:
            self._warn("domains of marks need mstx=True; they are left out")
        if include and exclude:
            self._warn("expected mstx_domain_include or mstx_domain_exclude, got both; the first")
            exclude = []
        self.mstx, self.mstx_domain_include, self.mstx_domain_exclude = wanted, include, exclude

    @staticmethod
    def _warn(problem: str) -> None:
        warnings.warn(f"[profiler._ExperimentalConfig] {problem}", stacklevel=4)

    def wants_mark(self, domain: str) -> bool:
        """Return whether marks of this domain are added to the trace."""
        if self.mstx_domain_include:
            return domain in self.mstx_domain_include
        return domain not in self.mstx_domain_exclude
