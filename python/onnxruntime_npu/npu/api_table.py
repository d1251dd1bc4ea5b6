"""Every row of torch_npu's device API, and its behaviour on the host NPU.

tests/device/test_api_table.py calls each of them; ``python -m onnxruntime_npu.npu.api_table``
prints docs/device_api.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One name: ``npu.x`` is ``torch.npu.x``, ``utils.x`` is ``torch_npu.utils.x``."""

    name: str
    kind: str
    host: str = ""  # how the host NPU differs from torch_npu's description, or adds to it
    supported: bool = True


ROWS = (
    Row(
        "npu.get_npu_overflow_flag",
        "utils",
        "Raises: the host NPU overflows to infinity (INF_NAN mode) and keeps no flag.",
    ),
    Row("npu.clear_npu_overflow_flag", "utils", "Warns and does nothing: there is no flag."),
    Row(
        "npu.matmul.allow_hf32",
        "option",
        "Stored and returned; float32 matmuls are always computed in float32.",
    ),
    Row(
        "npu.conv.allow_hf32",
        "option",
        "Stored and returned; float32 convolutions are always computed in float32.",
    ),
    Row(
        "npu.set_option",
        "option",
        "Checked, stored, returned; the host NPU compiles nothing: only dump options have effect.",
    ),
    Row(
        "npu.config.allow_internal_format",
        "option",
        "Stored; the host NPU has no private layouts.",
    ),
    Row(
        "npu.stress_detect",
        "device",
        "`aic` writes bit patterns through a stream and reads them back; `hccs` warns, returns 1.",
    ),
    Row(
        "npu.stop_device",
        "device",
        "Queued work is dropped, new work rejected; a running kernel completes.",
    ),
    Row(
        "npu.restart_device",
        "device",
        "Work is accepted again; streams and memory are preserved.",
    ),
    Row(
        "npu.check_uce_in_memory",
        "device",
        "Finds errors of `recovery.inject_uncorrectable_error`; real ones end the process.",
    ),
    Row(
        "npu.SyncLaunchStream",
        "stream",
        "One of four streams per device whose launches return when their work is done.",
    ),
    Row("npu.enable_deterministic_with_backward", "utils"),
    Row("npu.disable_deterministic_with_backward", "utils"),
    Row("npu.utils.is_support_inf_nan", "utils", "True: overflow gives infinity."),
    Row(
        "npu.utils.npu_check_overflow",
        "utils",
        "Whether a float, or the float32 sum of a tensor, is infinite or NaN.",
    ),
    Row(
        "npu.Event.recorded_time",
        "stream",
        "Time in microseconds (steady clock) at which the stream reached the event.",
    ),
    Row(
        "npu.set_dump",
        "profiler",
        "Inputs and outputs of eager operators are written to `.npy` files in stream order.",
    ),
    Row("npu.init_dump", "profiler", "Allows dumps; they begin with `set_dump`."),
    Row("npu.finalize_dump", "profiler", "Ends dumps."),
    Row("npu.set_compile_mode", "option", "Stored; every kernel of the host NPU is prebuilt."),
    Row(
        "npu.is_jit_compile_false",
        "option",
        "The setting of `set_compile_mode`; initially True.",
    ),
    Row("npu.set_mm_bmm_format_nd", "option", "Stored; the host NPU has plain layouts only."),
    Row("npu.get_mm_bmm_format_nd", "option", "The stored setting; initially True."),
    Row(
        "npu.ExternalEvent",
        "stream",
        "One record pairs with one wait, which resets it; in a capture both are nodes.",
    ),
    Row("npu.ExternalEvent.record", "stream", "A second record before the wait raises."),
    Row(
        "npu.ExternalEvent.reset",
        "stream",
        "Clears the record, in stream order.",
    ),
    Row("npu.ExternalEvent.wait", "stream", "A second wait for one record raises."),
    Row(
        "npu.graph_task_group_begin",
        "graph",
        "Launches from here to the end of the group can be replaced.",
    ),
    Row("npu.graph_task_group_end", "graph", "Returns the handle of the group."),
    Row(
        "npu.graph_task_update_begin",
        "graph",
        "Operators issued from here replace those of the group: the same, in the same order.",
    ),
    Row("npu.graph_task_update_end", "graph", "Raises when operators are missing."),
    Row("npu.aclnn.version", "option", "Warns and returns None: there is no aclnn library."),
    Row("npu.aclnn.allow_hf32", "option", "The same switch as `conv.allow_hf32`."),
    Row(
        "npu.get_amp_supported_dtype",
        "amp",
        "float16, bfloat16, float32; types without hardware support compute in float32.",
    ),
    Row("npu.is_autocast_enabled", "amp"),
    Row("npu.set_autocast_enabled", "amp"),
    Row("npu.get_autocast_dtype", "amp"),
    Row("npu.set_autocast_dtype", "amp"),
    Row("npu.get_rng_state", "rng"),
    Row("npu.set_rng_state", "rng"),
    Row("npu.get_rng_state_all", "rng"),
    Row("npu.set_rng_state_all", "rng"),
    Row("npu.manual_seed", "rng"),
    Row("npu.manual_seed_all", "rng"),
    Row("npu.seed", "rng"),
    Row("npu.seed_all", "rng"),
    Row("npu.initial_seed", "rng"),
    Row(
        "npu.is_initialized",
        "device",
        "Whether this module has initialised the device; sessions do not need it.",
    ),
    Row(
        "npu.init",
        "device",
        "Builds the runtime; a malformed environment variable is reported here.",
    ),
    Row(
        "npu.get_device_name",
        "device",
        "The actual name of the host NPU, or `ORT_NPU_DEVICE_NAME`.",
    ),
    Row(
        "npu.can_device_access_peer",
        "device",
        "True for two devices: they share an address space.",
    ),
    Row(
        "npu.get_device_properties",
        "device",
        "Vector cores: threads of the device; cube: those with AMX; L2: the last-level cache.",
    ),
    Row("npu.device_of", "device", "No-op for tensors on other devices."),
    Row("npu.current_blas_handle", "device", "Warns and returns None."),
    Row("npu.set_stream", "device"),
    Row(
        "npu.set_sync_debug_mode",
        "device",
        "`.item()`, `.cpu()`, `nonzero`, large pageable copies, CPU fallbacks warn or raise.",
    ),
    Row("npu.get_sync_debug_mode", "device", "0, 1 or 2."),
    Row(
        "npu.utilization",
        "device",
        "Utilization of the machine's cores over 20 ms.",
    ),
    Row(
        "npu.get_device_capability",
        "device",
        "Warns and returns None, or returns `TORCH_NPU_DEVICE_CAPABILITY`.",
    ),
    Row(
        "npu.caching_allocator_alloc",
        "memory",
        "Multiples of 512 bytes; requests are not padded by 32 bytes, which only Ascend needs.",
    ),
    Row(
        "npu.caching_allocator_delete",
        "memory",
        "Raises unless the address is that of an allocated block.",
    ),
    Row("npu.set_per_process_memory_fraction", "memory", "A fraction of the memory limit."),
    Row("npu.empty_cache", "memory"),
    Row("npu.memory_stats", "memory"),
    Row("npu.memory_stats_as_nested_dict", "memory"),
    Row("npu.reset_accumulated_memory_stats", "memory"),
    Row("npu.reset_peak_memory_stats", "memory"),
    Row("npu.reset_max_memory_allocated", "memory"),
    Row("npu.reset_max_memory_cached", "memory"),
    Row("npu.memory_allocated", "memory"),
    Row("npu.max_memory_allocated", "memory"),
    Row("npu.memory_reserved", "memory"),
    Row("npu.max_memory_reserved", "memory"),
    Row("npu.memory_cached", "memory"),
    Row("npu.max_memory_cached", "memory"),
    Row(
        "npu.memory_snapshot",
        "memory",
        "Segments and blocks of both sessions and tensors.",
    ),
    Row("npu.memory_summary", "memory"),
    Row(
        "npu.NPUPluggableAllocator",
        "memory",
        "Blocks are freed after the work of their stream; hooks are set by methods.",
    ),
    Row(
        "npu.change_current_allocator",
        "memory",
        "Before the first allocation only.",
    ),
    Row("npu.set_aoe", "option", "Creates the folder and stores the option; nothing is tuned."),
    Row(
        "npu.mstx",
        "profiler",
        "Visible in `torch.npu.profile` and in `torch_npu.profiler` with `mstx=True`.",
    ),
    Row("npu.mstx.mark", "profiler"),
    Row("npu.mstx.range_start", "profiler"),
    Row("npu.mstx.range_end", "profiler"),
    Row("npu.mstx.mstx_range", "profiler"),
    Row("npu.BoolStorage", "storage"),
    Row("npu.ByteStorage", "storage"),
    Row("npu.ShortStorage", "storage"),
    Row("npu.LongStorage", "storage"),
    Row("npu.IntStorage", "storage"),
    Row("npu.HalfStorage", "storage"),
    Row("npu.CharStorage", "storage"),
    Row("npu.DoubleStorage", "storage"),
    Row("npu.FloatStorage", "storage"),
    Row("npu.DoubleTensor", "tensor"),
    Row("npu.ShortTensor", "tensor"),
    Row("npu.CharTensor", "tensor"),
    Row("npu.ByteTensor", "tensor"),
    Row("npu.FloatTensor", "tensor"),
    Row("npu.HalfTensor", "tensor"),
    Row("npu.IntTensor", "tensor"),
    Row("npu.BoolTensor", "tensor"),
    Row("npu.LongTensor", "tensor"),
    Row("npu.StreamContext", "stream"),
    Row("npu.current_device", "device"),
    Row("npu.current_stream", "stream"),
    Row("npu.default_stream", "stream"),
    Row("npu.device", "device"),
    Row("npu.device_count", "device"),
    Row(
        "npu.ipc_collect",
        "device",
        "Nothing to collect: memory is not shared with other processes.",
    ),
    Row("npu.is_available", "device", "Whether at least one device is visible."),
    Row("npu.memory_usage", "device", "AttributeError, as with torch_npu.", supported=False),
    Row("npu.set_device", "device"),
    Row("npu.stream", "stream"),
    Row("npu.synchronize", "device"),
    Row("npu.comm.scatter", "device", "AttributeError, as with torch_npu.", supported=False),
    Row("npu.comm.gather", "device", "AttributeError, as with torch_npu.", supported=False),
    Row(
        "npu.Stream",
        "stream",
        "A queue with its own thread; priorities are accepted and ignored.",
    ),
    Row("npu.Stream.wait_stream", "stream"),
    Row(
        "npu.Event",
        "stream",
        "Recorded on a stream, with the time of the steady clock. `interprocess=True` raises: an "
        "event orders accesses to memory, and memory of the host NPU belongs to one process.",
    ),
    Row("npu.Event.elapsed_time", "stream"),
    Row("npu.Event.query", "stream"),
    Row("npu.Event.wait", "stream"),
    Row("npu.is_current_stream_capturing", "graph"),
    Row("npu.graph_pool_handle", "graph"),
    Row(
        "npu.NPUGraph",
        "graph",
        "Launches are stored with their addresses; their kernels must stay alive.",
    ),
    Row("npu.NPUGraph.capture_begin", "graph"),
    Row("npu.NPUGraph.capture_end", "graph"),
    Row("npu.NPUGraph.debug_dump", "graph", "JSON: operators, streams, dependencies."),
    Row("npu.NPUGraph.pool", "graph"),
    Row(
        "npu.NPUGraph.replay",
        "graph",
        "One submission; random numbers continue from the generator's position.",
    ),
    Row("npu.NPUGraph.reset", "graph"),
    Row("npu.graph", "graph"),
    Row(
        "npu.make_graphed_callables",
        "graph",
        "Forward and backward passes share one memory pool.",
    ),
    Row(
        "npu.mem_get_info",
        "memory",
        "The memory limit of the device, of which this process is the only user.",
    ),
    Row("npu.get_allocator_backend", "memory", "`native`, or `pluggable`."),
    Row(
        "npu._sanitizer.enable_npu_sanitizer",
        "profiler",
        "Finds unordered accesses of two streams to tensors or memory of freed tensors.",
    ),
    Row(
        "npu.empty_virt_addr_cache",
        "memory",
        "Releases the free ends of expandable segments; raises when they are disabled.",
    ),
    Row(
        "utils.save_async",
        "utils",
        "Copies in stream order before it returns, writes the file on a thread.",
    ),
    Row("utils.npu_combine_tensors", "utils"),
    Row("utils.get_part_combined_tensor", "utils"),
    Row("utils.is_combined_tensor_valid", "utils"),
    Row(
        "utils.FlopsCounter",
        "utils",
        "Matmuls, convolutions and attention, on any device.",
    ),
    Row("utils.set_thread_affinity", "utils", "Works independently of `CPU_AFFINITY_CONF`."),
    Row("utils.reset_thread_affinity", "utils"),
)


def markdown() -> str:
    """Return docs/device_api.md."""
    lines = [
        "# Device API",
        "",
        "Generated from `python/onnxruntime_npu/npu/api_table.py`, whose rows",
        "`tests/device/test_api_table.py` calls one by one. `npu.x` is `torch.npu.x` and",
        "`torch_npu.npu.x`; `utils.x` is `torch_npu.utils.x`. An empty last column means that",
        "torch_npu's description applies unchanged.",
    ]
    for kind in dict.fromkeys(row.kind for row in ROWS):
        lines += ["", f"## {kind}", "", "| name | on the host NPU |", "|---|---|"]
        for row in ROWS:
            if row.kind == kind:
                note = row.host if row.supported else f"Not supported. {row.host}"
                lines.append(f"| `{row.name}` | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
