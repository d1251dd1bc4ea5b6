"""Every row of torch_npu's device API, and what it does on the host NPU.

tests/device/test_api_table.py calls each of them; ``python -m onnxruntime_npu.npu.api_table``
prints docs/device_api.md.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One name: ``npu.x`` is ``torch.npu.x``, ``utils.x`` is ``torch_npu.utils.x``."""

    name: str
    seeds: str  # tables of torch_npu's reference in which it stands
    kind: str
    host: str = ""  # where the host NPU differs from, or says more than, torch_npu's description
    supported: bool = True


ROWS = (
    Row(
        "npu.get_npu_overflow_flag",
        "000/1",
        "utils",
        "Raises: the host NPU overflows to infinity (INF_NAN mode) and keeps no flag.",
    ),
    Row(
        "npu.clear_npu_overflow_flag", "000/1", "utils", "Warns and does nothing: there is no flag."
    ),
    Row(
        "npu.matmul.allow_hf32",
        "000/1",
        "option",
        "Kept and read back; float32 products are always computed in float32.",
    ),
    Row(
        "npu.conv.allow_hf32",
        "000/1",
        "option",
        "Kept and read back; float32 convolutions are always computed in float32.",
    ),
    Row(
        "npu.set_option",
        "000/1",
        "option",
        "Checked, kept, read back; the host NPU compiles nothing, so only the dump options act.",
    ),
    Row(
        "npu.config.allow_internal_format",
        "000/1",
        "option",
        "Kept; the host NPU has no private layouts.",
    ),
    Row(
        "npu.stress_detect",
        "000/1",
        "device",
        "`aic` writes bit patterns through a stream and reads them back; `hccs` warns and gives 1.",
    ),
    Row(
        "npu.stop_device",
        "000/1",
        "device",
        "Queued work is dropped, new work refused; a kernel that runs already ends by itself.",
    ),
    Row(
        "npu.restart_device",
        "000/1",
        "device",
        "Work is accepted again; streams and memory survive.",
    ),
    Row(
        "npu.check_uce_in_memory",
        "000/1",
        "device",
        "Sees errors that `recovery.inject_uncorrectable_error` made; real ones end the process.",
    ),
    Row(
        "npu.SyncLaunchStream",
        "000/1",
        "stream",
        "One of four streams per device whose launches return when their work is done.",
    ),
    Row("npu.utils.is_support_inf_nan", "000/1", "utils", "True: overflow gives infinity."),
    Row(
        "npu.utils.npu_check_overflow",
        "000/1",
        "utils",
        "Whether a float, or the float32 sum of a tensor, is infinite or not a number.",
    ),
    Row(
        "npu.Event.recorded_time",
        "000/1",
        "stream",
        "The steady clock in microseconds at which the stream reached the event.",
    ),
    Row(
        "npu.set_dump",
        "000/1",
        "profiler",
        "Inputs and outputs of eager operators go to `.npy` files in stream order.",
    ),
    Row("npu.init_dump", "000/1", "profiler", "Allows dumps; they begin with `set_dump`."),
    Row("npu.finalize_dump", "000/1", "profiler", "Ends dumps."),
    Row(
        "npu.set_compile_mode", "000/1", "option", "Kept; every kernel of the host NPU is prebuilt."
    ),
    Row(
        "npu.is_jit_compile_false",
        "000/1",
        "option",
        "What `set_compile_mode` chose; True at first.",
    ),
    Row(
        "npu.set_mm_bmm_format_nd", "000/1", "option", "Kept; the host NPU has plain layouts only."
    ),
    Row("npu.get_mm_bmm_format_nd", "000/1", "option", "What was chosen; True at first."),
    Row(
        "npu.ExternalEvent",
        "000/1",
        "stream",
        "One record pairs with one wait, which resets it; in a capture both are nodes.",
    ),
    Row("npu.ExternalEvent.record", "000/1", "stream", "A second record before the wait raises."),
    Row(
        "npu.ExternalEvent.reset",
        "000/1",
        "stream",
        "Takes the record away, in the stream's order.",
    ),
    Row("npu.ExternalEvent.wait", "000/1", "stream", "A second wait for one record raises."),
    Row(
        "npu.graph_task_group_begin",
        "000/1",
        "graph",
        "Launches from here to the end of the group can be replaced.",
    ),
    Row("npu.graph_task_group_end", "000/1", "graph", "Gives the handle of the group."),
    Row(
        "npu.graph_task_update_begin",
        "000/1",
        "graph",
        "Operators issued from here replace those of the group: the same, in the same order.",
    ),
    Row("npu.graph_task_update_end", "000/1", "graph", "Raises when operators are missing."),
    Row("npu.aclnn.version", "000/1", "option", "Warns and gives None: there is no aclnn library."),
    Row("npu.aclnn.allow_hf32", "000/1", "option", "The switch of `conv.allow_hf32`."),
    Row(
        "npu.get_amp_supported_dtype",
        "000/2",
        "amp",
        "float16, bfloat16, float32; what the machine lacks computes through float32.",
    ),
    Row("npu.is_autocast_enabled", "000/2", "amp"),
    Row("npu.set_autocast_enabled", "000/2", "amp"),
    Row("npu.get_autocast_dtype", "000/2", "amp"),
    Row("npu.set_autocast_dtype", "000/2", "amp"),
    Row("npu.get_rng_state", "000/3 002/1", "rng"),
    Row("npu.set_rng_state", "000/3 002/1", "rng"),
    Row("npu.get_rng_state_all", "000/3", "rng"),
    Row("npu.set_rng_state_all", "000/3 002/1", "rng"),
    Row("npu.manual_seed", "000/3 002/1", "rng"),
    Row("npu.manual_seed_all", "000/3 002/1", "rng"),
    Row("npu.seed", "000/3 002/1", "rng"),
    Row("npu.seed_all", "000/3 002/1", "rng"),
    Row("npu.initial_seed", "000/3 002/1", "rng"),
    Row(
        "npu.is_initialized",
        "000/4 002/1",
        "device",
        "Whether this module opened the device; sessions use it without asking.",
    ),
    Row(
        "npu.init",
        "000/4 002/1",
        "device",
        "Builds the runtime; a malformed environment variable is reported here.",
    ),
    Row(
        "npu.get_device_name",
        "000/4 002/1",
        "device",
        "An honest name of the host NPU, or `ORT_NPU_DEVICE_NAME`.",
    ),
    Row(
        "npu.can_device_access_peer",
        "000/4 002/1",
        "device",
        "True for two devices: they share an address space.",
    ),
    Row(
        "npu.get_device_properties",
        "000/4 002/1",
        "device",
        "Vector cores: threads of the device; cube: those with AMX; L2: the last-level cache.",
    ),
    Row("npu.device_of", "000/4 002/1", "device", "No-op for what is not on an npu."),
    Row("npu.current_blas_handle", "000/4 002/1", "device", "Warns and gives None."),
    Row("npu.set_stream", "000/4 002/1", "device"),
    Row(
        "npu.set_sync_debug_mode",
        "000/4 002/1",
        "device",
        "`.item()`, `.cpu()`, `nonzero`, large pageable copies, CPU fallbacks warn or raise.",
    ),
    Row("npu.get_sync_debug_mode", "000/4 002/1", "device", "0, 1 or 2."),
    Row(
        "npu.utilization",
        "000/4 002/1",
        "device",
        "How busy the cores of the machine are, over 20 ms.",
    ),
    Row(
        "npu.get_device_capability",
        "000/4",
        "device",
        "Warns and gives None, or `TORCH_NPU_DEVICE_CAPABILITY`.",
    ),
    Row(
        "npu.caching_allocator_alloc",
        "000/5 002/1 003/1",
        "memory",
        "Multiples of 512 bytes; requests are not padded by 32 bytes, which only Ascend needs.",
    ),
    Row(
        "npu.caching_allocator_delete",
        "000/5 002/1 003/1",
        "memory",
        "An address that is no live block raises.",
    ),
    Row(
        "npu.set_per_process_memory_fraction", "000/5 002/1 003/1", "memory", "Of the memory limit."
    ),
    Row("npu.empty_cache", "000/5 002/1 003/1", "memory"),
    Row("npu.memory_stats", "000/5 002/1 003/1", "memory"),
    Row("npu.memory_stats_as_nested_dict", "000/5 003/1", "memory"),
    Row("npu.reset_accumulated_memory_stats", "000/5 003/1", "memory"),
    Row("npu.reset_peak_memory_stats", "000/5 002/1 003/1", "memory"),
    Row("npu.reset_max_memory_allocated", "000/5 002/1 003/1", "memory"),
    Row("npu.reset_max_memory_cached", "000/5 002/1 003/1", "memory"),
    Row("npu.memory_allocated", "000/5 002/1 003/1", "memory"),
    Row("npu.max_memory_allocated", "000/5 002/1 003/1", "memory"),
    Row("npu.memory_reserved", "000/5 002/1 003/1", "memory"),
    Row("npu.max_memory_reserved", "000/5 002/1 003/1", "memory"),
    Row("npu.memory_cached", "000/5 002/1 003/1", "memory"),
    Row("npu.max_memory_cached", "000/5 002/1 003/1", "memory"),
    Row(
        "npu.memory_snapshot",
        "000/5 003/1",
        "memory",
        "Segments and blocks of sessions and tensors alike.",
    ),
    Row("npu.memory_summary", "000/5 002/1 003/1", "memory"),
    Row(
        "npu.NPUPluggableAllocator",
        "000/5 002/1 003/1",
        "memory",
        "Blocks go to the free function behind the work of their stream; hooks by setters.",
    ),
    Row(
        "npu.change_current_allocator",
        "000/5 002/1 003/1",
        "memory",
        "Before the first allocation only.",
    ),
    Row(
        "npu.set_aoe", "000/6", "option", "Makes the folder and keeps the option; nothing is tuned."
    ),
    Row(
        "npu.mstx",
        "000/7",
        "profiler",
        "Seen in `torch.npu.profile` and in `torch_npu.profiler` with `mstx=True`.",
    ),
    Row("npu.mstx.mark", "000/7", "profiler"),
    Row("npu.mstx.range_start", "000/7", "profiler"),
    Row("npu.mstx.range_end", "000/7", "profiler"),
    Row("npu.mstx.mstx_range", "000/7", "profiler"),
    Row("npu.BoolStorage", "000/8", "storage"),
    Row("npu.ByteStorage", "000/8", "storage"),
    Row("npu.ShortStorage", "000/8", "storage"),
    Row("npu.LongStorage", "000/8", "storage"),
    Row("npu.IntStorage", "000/8", "storage"),
    Row("npu.HalfStorage", "000/8", "storage"),
    Row("npu.CharStorage", "000/8", "storage"),
    Row("npu.DoubleStorage", "000/8", "storage"),
    Row("npu.FloatStorage", "000/8", "storage"),
    Row("npu.DoubleTensor", "000/9", "tensor"),
    Row("npu.ShortTensor", "000/9", "tensor"),
    Row("npu.CharTensor", "000/9", "tensor"),
    Row("npu.ByteTensor", "000/9", "tensor"),
    Row("npu.FloatTensor", "000/9", "tensor"),
    Row("npu.HalfTensor", "000/9", "tensor"),
    Row("npu.IntTensor", "000/9", "tensor"),
    Row("npu.BoolTensor", "000/9", "tensor"),
    Row("npu.LongTensor", "000/9", "tensor"),
    Row("npu.StreamContext", "002/1", "stream"),
    Row("npu.current_device", "002/1", "device"),
    Row("npu.current_stream", "002/1", "stream"),
    Row("npu.default_stream", "002/1", "stream"),
    Row("npu.device", "002/1", "device"),
    Row("npu.device_count", "002/1", "device"),
    Row(
        "npu.ipc_collect",
        "002/1",
        "device",
        "Nothing to collect: memory is not shared with other processes.",
    ),
    Row(
        "npu.is_available",
        "002/1",
        "device",
        "Whether there is a device; the host NPU always is one.",
    ),
    Row(
        "npu.memory_usage", "002/1", "device", "AttributeError, as with torch_npu.", supported=False
    ),
    Row("npu.set_device", "002/1", "device"),
    Row("npu.stream", "002/1", "stream"),
    Row("npu.synchronize", "002/1", "device"),
    Row(
        "npu.comm.scatter", "002/1", "device", "AttributeError, as with torch_npu.", supported=False
    ),
    Row(
        "npu.comm.gather", "002/1", "device", "AttributeError, as with torch_npu.", supported=False
    ),
    Row(
        "npu.Stream",
        "002/1",
        "stream",
        "A queue with a thread of its own; priorities are accepted and unused.",
    ),
    Row("npu.Stream.wait_stream", "002/1", "stream"),
    Row(
        "npu.Event",
        "002/1",
        "stream",
        "Recorded on a stream; the time is that of the steady clock. `interprocess=True` is "
        "refused: an event orders work on memory, and memory of the host NPU belongs to one "
        "process.",
    ),
    Row("npu.Event.elapsed_time", "002/1", "stream"),
    Row("npu.Event.query", "002/1", "stream"),
    Row("npu.Event.wait", "002/1", "stream"),
    Row("npu.is_current_stream_capturing", "002/1", "graph"),
    Row("npu.graph_pool_handle", "002/1", "graph"),
    Row(
        "npu.NPUGraph",
        "002/1",
        "graph",
        "Launches kept with their addresses; kernels that made them must stay.",
    ),
    Row("npu.NPUGraph.capture_begin", "002/1", "graph"),
    Row("npu.NPUGraph.capture_end", "002/1", "graph"),
    Row("npu.NPUGraph.debug_dump", "002/1", "graph", "JSON: operators, streams, dependencies."),
    Row("npu.NPUGraph.pool", "002/1", "graph"),
    Row(
        "npu.NPUGraph.replay",
        "002/1",
        "graph",
        "One submission; random numbers go on where the generator is.",
    ),
    Row("npu.NPUGraph.reset", "002/1", "graph"),
    Row("npu.graph", "002/1", "graph"),
    Row(
        "npu.make_graphed_callables",
        "002/1",
        "graph",
        "Forward and backward passes; memory of both in one pool.",
    ),
    Row(
        "npu.mem_get_info",
        "002/1",
        "memory",
        "The memory limit of the device, of which this process is the only user.",
    ),
    Row("npu.get_allocator_backend", "002/1", "memory", "`native`, or `pluggable`."),
    Row(
        "npu._sanitizer.enable_npu_sanitizer",
        "002/1",
        "profiler",
        "Finds tensors, and memory of freed tensors, that two streams use without an order.",
    ),
    Row(
        "npu.empty_virt_addr_cache",
        "003/1",
        "memory",
        "Gives back the free ends of expandable segments; raises when they are off.",
    ),
    Row(
        "utils.save_async",
        "004/1",
        "utils",
        "Copies in stream order before it returns, writes on a thread.",
    ),
    Row("utils.npu_combine_tensors", "004/1", "utils"),
    Row("utils.get_part_combined_tensor", "004/1", "utils"),
    Row("utils.is_combined_tensor_valid", "004/1", "utils"),
    Row(
        "utils.FlopsCounter",
        "004/1",
        "utils",
        "Matrix products, convolutions, attention, on any device.",
    ),
    Row("utils.set_thread_affinity", "004/1", "utils", "Works whatever `CPU_AFFINITY_CONF` says."),
    Row("utils.reset_thread_affinity", "004/1", "utils"),
)


def markdown() -> str:
    """Return docs/device_api.md."""
    lines = [
        "# Device API",
        "",
        "Generated from `python/onnxruntime_npu/npu/api_table.py`, whose rows",
        "`tests/device/test_api_table.py` calls one by one. `npu.x` is `torch.npu.x` and",
        "`torch_npu.npu.x`; `utils.x` is `torch_npu.utils.x`. An empty last column: as torch_npu",
        "describes it.",
    ]
    for kind in dict.fromkeys(row.kind for row in ROWS):
        lines += ["", f"## {kind}", "", "| name | seeds | on the host NPU |", "|---|---|---|"]
        for row in ROWS:
            if row.kind == kind:
                note = row.host if row.supported else f"Not supported. {row.host}"
                lines.append(f"| `{row.name}` | {row.seeds} | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
