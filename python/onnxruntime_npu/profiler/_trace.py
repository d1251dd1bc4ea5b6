"""Post-processing of torch's traces: device names, marks, metadata."""

from __future__ import annotations

from typing import Any

_OF_PROCESS = ("process_name", "process_labels")


def finish(trace: dict[str, Any], marks: list[dict[str, Any]], metadata: dict[str, Any]) -> None:
    """Edit torch's trace in place; times of ``marks`` are the system clock in microseconds.

    torch labels every device as a GPU of the process, and lists sixteen of them.
    """
    events = trace["traceEvents"]
    gpus = {e["pid"] for e in events if _label(e).startswith("GPU ")}
    npus = {e["pid"] for e in events if _label(e).startswith("NPU ")}
    trace["traceEvents"] = [e for e in events if e["pid"] not in gpus or _is_true(e, npus)]
    base = trace.get("baseTimeNanoseconds", 0) / 1000
    for mark in marks:
        trace["traceEvents"].append({**mark, "ts": mark["ts"] - base})
    trace.update(metadata)


def _label(event: dict[str, Any]) -> str:
    return str(event.get("args", {}).get("labels", "")) if event["ph"] == "M" else ""


def _is_true(event: dict[str, Any], npus: set[Any]) -> bool:
    if event["name"] == "process_sort_index":
        return event["pid"] in npus
    said = event.get("args", {}).get("name") or _label(event)
    return event["name"] not in _OF_PROCESS or said.startswith("NPU ")
