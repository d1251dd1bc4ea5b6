"""The columns of torch's profiler by the names that scripts for npu write.

torch calls a device's times and memory ``device_time_total``, ``self_device_memory_usage`` and so
on. torch_npu's names have ``npu`` instead, as in ``table(sort_by="self_npu_time_total")``.
"""

from __future__ import annotations

from typing import Any

_COLUMNS = (
    "device_time",
    "device_time_str",
    "device_time_total",
    "device_time_total_str",
    "self_device_time_total",
    "self_device_time_total_str",
    "device_memory_usage",
    "self_device_memory_usage",
)


def name_after(device_type: str) -> None:
    """Let events, tables and stacks of the profiler have the device's columns by its name."""
    from torch.autograd import profiler_util

    for column in _COLUMNS:
        for event in (profiler_util.FunctionEvent, profiler_util.FunctionEventAvg):
            setattr(event, column.replace("device", device_type), _same_as(column))

    original = profiler_util.EventList.supported_export_stacks_metrics

    def supported_export_stacks_metrics(self: Any) -> list[str]:
        return [*original(self), f"self_{device_type}_time_total"]

    profiler_util.EventList.supported_export_stacks_metrics = (  # type: ignore[method-assign]
        supported_export_stacks_metrics
    )


def _same_as(column: str) -> Any:
    return property(lambda event: getattr(event, column), doc=f"The same as ``{column}``.")
