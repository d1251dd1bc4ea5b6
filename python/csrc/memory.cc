// The caching allocator for Python: blocks, statistics, snapshots, pools.
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "ep/runtime/current.h"
#include "ep/runtime/lent_memory.h"
#include "ep/runtime/staged_copy.h"
#include "ep/runtime/worker_thread.h"
#include "python/csrc/counters.h"
#include "python/csrc/module.h"
#include "python/csrc/stream_argument.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

CachingAllocator& AllocatorOf(int device) { return Runtime::Instance().device(device).allocator(); }

// The nested form of torch.npu.memory_stats().
py::dict NestedMemoryStats(int device) {
  const AllocatorStats s = AllocatorOf(device).Stats();
  const size_t split = AllocatorOf(device).settings().max_split_size;
  py::dict out("num_alloc_retries"_a = s.num_alloc_retries, "num_ooms"_a = s.num_ooms,
               "max_split_size"_a = split == SIZE_MAX ? int64_t{-1} : static_cast<int64_t>(split),
               "num_sync_all_streams"_a = s.num_sync_all_streams, "num_device_alloc"_a = s.num_device_alloc,
               "num_device_free"_a = s.num_device_free, "num_oom_rejections"_a = s.num_oom_rejections);
  const std::pair<const char*, const PoolCounters&> families[] = {{"allocation", s.allocation},
                                                                  {"segment", s.segment},
                                                                  {"active", s.active},
                                                                  {"inactive_split", s.inactive_split},
                                                                  {"allocated_bytes", s.allocated_bytes},
                                                                  {"reserved_bytes", s.reserved_bytes},
                                                                  {"active_bytes", s.active_bytes},
                                                                  {"inactive_split_bytes", s.inactive_split_bytes},
                                                                  {"requested_bytes", s.requested_bytes}};
  for (const auto& [name, pools] : families) {
    out[name] = py::dict("all"_a = Counter(pools.all), "small_pool"_a = Counter(pools.small_pool),
                         "large_pool"_a = Counter(pools.large_pool));
  }
  out["oversize_allocations"] = Counter(s.oversize_allocations);
  out["oversize_segments"] = Counter(s.oversize_segments);
  return out;
}

void OfferMemory(int device, uintptr_t address, size_t bytes, py::object owner) {
  std::shared_ptr<void> keep(owner.release().ptr(), [](void* object) {
    if (!Py_IsInitialized()) return;
    py::gil_scoped_acquire gil;
    Py_DECREF(static_cast<PyObject*>(object));
  });
  LentMemory::Offer(device, reinterpret_cast<void*>(address), bytes, std::move(keep));
}

py::tuple IdOf(PoolId pool) { return py::make_tuple(pool.first, pool.second); }
PoolId PoolOf(const std::pair<uint64_t, uint64_t>& id) { return {id.first, id.second}; }

py::list FrameList(const Frames& frames) {
  py::list out;
  if (frames == nullptr) return out;
  for (const Frame& f : *frames) out.append(py::dict("filename"_a = f.file, "line"_a = f.line, "name"_a = f.function));
  return out;
}

const char* NameOf(BlockInfo::State state) {
  static constexpr const char* kNames[] = {"active_allocated", "active_pending_free", "inactive"};
  return kNames[static_cast<int>(state)];
}

const char* NameOf(TraceEntry::Action action) {
  static constexpr const char* kNames[] = {"alloc",         "free_requested", "free_completed",
                                           "segment_alloc", "segment_free",   "segment_map",
                                           "segment_unmap", "snapshot",       "oom"};
  return kNames[static_cast<int>(action)];
}

// The stream's handle in Python; 0 when it was destroyed.
uint64_t HandleOf(int device, uint64_t stream_id) {
  return reinterpret_cast<uint64_t>(Runtime::Instance().device(device).FindStream(stream_id));
}

py::list Snapshot(int device) {
  py::list out;
  for (const SegmentInfo& s : AllocatorOf(device).Snapshot()) {
    py::list blocks;
    for (const BlockInfo& b : s.blocks) {
      blocks.append(py::dict("address"_a = b.address, "size"_a = b.size, "requested_size"_a = b.requested,
                             "state"_a = NameOf(b.state), "frames"_a = FrameList(b.frames)));
    }
    out.append(py::dict("device"_a = device, "address"_a = s.address, "total_size"_a = s.total,
                        "allocated_size"_a = s.allocated, "active_size"_a = s.active, "requested_size"_a = s.requested,
                        "stream"_a = HandleOf(device, s.stream), "segment_pool_id"_a = IdOf(s.pool),
                        "segment_type"_a = s.small ? "small" : "large", "is_expandable"_a = s.expandable,
                        "frames"_a = py::list(), "blocks"_a = blocks));
  }
  return out;
}

py::list History(int device) {
  py::list out;
  for (const TraceEntry& e : AllocatorOf(device).History()) {
    py::dict entry("action"_a = NameOf(e.action), "size"_a = e.size, "stream"_a = HandleOf(device, e.stream),
                   "pool_id"_a = IdOf(e.pool), "time_us"_a = e.time_us, "frames"_a = FrameList(e.frames));
    entry[e.action == TraceEntry::Action::kOutOfMemory ? "device_free" : "addr"] = e.address;
    out.append(entry);
  }
  return out;
}

// The Python stack of the calling thread, innermost first. A thread that runs no Python has none.
Frames PythonFrames() {
  if (PyGILState_GetThisThreadState() == nullptr) return nullptr;
  py::gil_scoped_acquire gil;
  auto frames = std::make_shared<std::vector<Frame>>();
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    frames->push_back({py::str(code.attr("co_filename")), PyFrame_GetLineNumber(raw), py::str(code.attr("co_name"))});
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return frames;
}

uintptr_t Allocate(size_t bytes, int device, uintptr_t stream) {
  return reinterpret_cast<uintptr_t>(AllocatorOf(device).Allocate(bytes, StreamArgument(device, stream)));
}

// Finds the device of a block, which the call does not name: an address belongs to one device.
int DeviceOfBlock(uintptr_t address) {
  Runtime& runtime = Runtime::Instance();
  for (int i = 0; i < runtime.device_count(); ++i) {
    if (runtime.device(i).allocator().SizeOf(reinterpret_cast<void*>(address)) > 0) return i;
  }
  Fail(ErrorCode::kInvalidArgument, "invalid device pointer: ", reinterpret_cast<const void*>(address),
       " is no live block of the caching allocator: it was freed before, or was allocated elsewhere");
}

void Free(uintptr_t address) {
  if (address == 0 || InForkedChild()) return;
  AllocatorOf(DeviceOfBlock(address)).CheckedFree(reinterpret_cast<void*>(address));
}

// Checks that the range is inside one live block, so that Python cannot touch other memory.
void CheckRange(int device, uintptr_t address, size_t bytes) {
  BlockInfo block;
  NPU_CHECK(AllocatorOf(device).FindBlock(reinterpret_cast<void*>(address), block) &&
                block.state == BlockInfo::State::kAllocated && bytes <= block.size - (address - block.address),
            "expected ", bytes, " bytes inside one live block of NPU ", device, ", got the address ", address);
}

void CopyFromHost(int device, uintptr_t dst, const py::buffer& source, uintptr_t stream) {
  const py::buffer_info info = source.request();
  const auto bytes = static_cast<size_t>(info.size * info.itemsize);
  if (bytes == 0) return;
  CheckRange(device, dst, bytes);
  py::gil_scoped_release release;  // `info` holds the buffer
  LaunchStagedCopy(StreamArgument(device, stream), reinterpret_cast<void*>(dst), info.ptr, bytes);
}

py::bytes CopyToHost(int device, uintptr_t src, size_t bytes, uintptr_t stream) {
  if (bytes > 0) CheckRange(device, src, bytes);
  std::string out(bytes, '\0');
  {
    py::gil_scoped_release release;
    Stream& s = StreamArgument(device, stream);
    s.Copy(out.data(), reinterpret_cast<void*>(src), bytes, CopyKind::kDeviceToHost);
    s.Synchronize();
  }
  return out;
}

void Fill(int device, uintptr_t dst, int value, size_t bytes, uintptr_t stream) {
  if (bytes > 0) CheckRange(device, dst, bytes);
  StreamArgument(device, stream).Memset(reinterpret_cast<void*>(dst), value, bytes);
}

// The device whose memory holds the address; -1: none.
int DeviceOfAddress(uintptr_t address) {
  for (int i = 0; i < Runtime::Instance().device_count(); ++i)
    if (AllocatorOf(i).LiveBlockAround(reinterpret_cast<void*>(address)) != nullptr) return i;
  return -1;
}

// 1: not this allocator's memory; 2: a free block; 3: a block in use (check_uce_in_memory's codes).
int Classify(int device, uintptr_t address) {
  BlockInfo block;
  if (!AllocatorOf(device).FindBlock(reinterpret_cast<void*>(address), block)) return 1;
  return block.state == BlockInfo::State::kInactive ? 2 : 3;
}

// `record` and `erase`, void (void* ptr, void* stream), may be 0.
void UsePluggable(uintptr_t alloc, uintptr_t free, uintptr_t record, uintptr_t erase) {
  NPU_CHECK(alloc != 0 && free != 0, "expected the addresses of an alloc and a free function, got null");
  const auto alloc_fn = reinterpret_cast<void* (*)(size_t, int, void*)>(alloc);
  const auto free_fn = reinterpret_cast<void (*)(void*, size_t, int, void*)>(free);
  const auto stream_function = [](uintptr_t address) -> std::function<void(void*, Stream&)> {
    if (address == 0) return nullptr;
    const auto fn = reinterpret_cast<void (*)(void*, void*)>(address);
    return [fn](void* ptr, Stream& stream) { fn(ptr, &stream); };
  };
  Runtime& runtime = Runtime::Instance();
  for (int i = 0; i < runtime.device_count(); ++i) {
    runtime.device(i).allocator().UsePluggable(
        {[=](size_t bytes, int device, Stream& stream) { return alloc_fn(bytes, device, &stream); },
         [=](void* ptr, size_t bytes, int device, Stream* stream) { free_fn(ptr, bytes, device, stream); },
         stream_function(record), stream_function(erase)});
  }
}

}  // namespace

void BindMemory(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("memory_stats_as_nested_dict", &NestedMemoryStats, "device"_a);
  m.def("memory_limit", [](int device) { return AllocatorOf(device).limit(); }, "device"_a = 0);
  m.def("reset_peak_memory_stats", [](int device) { AllocatorOf(device).ResetPeakStats(); }, "device"_a = 0);
  m.def("reset_accumulated_memory_stats", [](int device) { AllocatorOf(device).ResetAccumulatedStats(); }, "device"_a);
  m.def("empty_cache", [](int device) { AllocatorOf(device).EmptyCache(); }, "device"_a = 0, no_gil);
  m.def("trim_expandable_segments", [](int d) { AllocatorOf(d).TrimExpandableSegments(); }, "device"_a, no_gil);
  m.def("set_memory_fraction", [](int d, double f) { AllocatorOf(d).SetMemoryFraction(f); }, "device"_a, "fraction"_a);
  m.def("memory_fraction", [](int d) { return AllocatorOf(d).settings().memory_fraction; }, "device"_a);
  m.def(
      "set_expandable_segments", [](int d, bool on) { AllocatorOf(d).SetExpandableSegments(on); }, "device"_a, "on"_a);
  m.def("allocate", &Allocate, "bytes"_a, "device"_a, "stream"_a = 0, no_gil);
  m.def("free", &Free, "address"_a, no_gil);
  m.def(
      "block_size", [](int d, uintptr_t p) { return AllocatorOf(d).SizeOf(reinterpret_cast<void*>(p)); }, "device"_a,
      "address"_a);
  m.def(
      "record_stream",
      [](int d, uintptr_t p, uintptr_t s) {
        AllocatorOf(d).RecordStream(reinterpret_cast<void*>(p), StreamArgument(d, s));
      },
      "device"_a, "address"_a, "stream"_a);
  m.def(
      "erase_stream",
      [](int d, uintptr_t p, uintptr_t s) {
        AllocatorOf(d).EraseStream(reinterpret_cast<void*>(p), StreamArgument(d, s));
      },
      "device"_a, "address"_a, "stream"_a);
  m.def("memory_snapshot", &Snapshot, "device"_a);
  m.def(
      "record_memory_history",
      [](int d, size_t entries, bool stacks) {
        AllocatorOf(d).RecordHistory(entries, stacks ? &PythonFrames : nullptr);
      },
      "device"_a, "max_entries"_a, "stacks"_a);
  m.def("memory_history", &History, "device"_a);
  m.def("retain_pool", [](int d, std::pair<uint64_t, uint64_t> id) { AllocatorOf(d).RetainPool(PoolOf(id)); });
  m.def("release_pool", [](int d, std::pair<uint64_t, uint64_t> id) { AllocatorOf(d).ReleasePool(PoolOf(id)); });
  m.def("pool_use_count",
        [](int d, std::pair<uint64_t, uint64_t> id) { return AllocatorOf(d).PoolUseCount(PoolOf(id)); });
  m.def("begin_thread_pool", [](int d, std::pair<uint64_t, uint64_t> id) {
    AllocatorOf(d).BeginPool(
        PoolOf(id), [me = std::this_thread::get_id()](const Stream&) { return std::this_thread::get_id() == me; });
  });
  m.def("end_pool", [](int d, std::pair<uint64_t, uint64_t> id) { AllocatorOf(d).EndPool(PoolOf(id)); });
  m.def("offer_memory", &OfferMemory, "device"_a, "address"_a, "bytes"_a, "owner"_a);
  m.def("withdraw_memory", &LentMemory::Withdraw);
  m.def("copy_from_host", &CopyFromHost, "device"_a, "dst"_a, "source"_a, "stream"_a = 0);
  m.def("copy_to_host", &CopyToHost, "device"_a, "src"_a, "bytes"_a, "stream"_a = 0);
  m.def("fill", &Fill, "device"_a, "dst"_a, "value"_a, "bytes"_a, "stream"_a = 0, no_gil);
  m.def("device_of_address", &DeviceOfAddress, "address"_a);
  m.def("classify_address", &Classify, "device"_a, "address"_a);
  m.def("use_pluggable_allocator", &UsePluggable, "alloc"_a, "free"_a, "record_stream"_a, "erase_stream"_a);
}

}  // namespace npu::python
