"""``torch_npu.profiler``: torch's profiler with the launches of npu in the same trace.

``torch.profiler.profile(activities=[CPU, PrivateUse1])`` also records them; this package has the
names and the options that scripts for torch_npu use.
"""

from __future__ import annotations

from . import dynamic_profile as dynamic_profile
from .experimental_config import AiCMetrics as AiCMetrics
from .experimental_config import ExportType as ExportType
from .experimental_config import HostSystem as HostSystem
from .experimental_config import ProfilerLevel as ProfilerLevel
from .experimental_config import _ExperimentalConfig as _ExperimentalConfig
from .experimental_config import supported_ai_core_metrics as supported_ai_core_metrics
from .experimental_config import supported_export_type as supported_export_type
from .experimental_config import supported_profiler_level as supported_profiler_level
from .profiler import ProfilerActivity as ProfilerActivity
from .profiler import _KinetoProfile as _KinetoProfile
from .profiler import analyse as analyse
from .profiler import profile as profile
from .profiler import supported_activities as supported_activities
from .profiler import tensorboard_trace_handler as tensorboard_trace_handler
from .scheduler import ProfilerAction as ProfilerAction
from .scheduler import Schedule as schedule

__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "analyse",
    "dynamic_profile",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]
