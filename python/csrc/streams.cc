// Streams and events for Python. Streams are borrowed: the runtime's pools keep them for the life of the process.
#include <pybind11/stl.h>

#include <chrono>
#include <thread>

#include "ep/runtime/current.h"
#include "ep/runtime/external_event.h"
#include "ep/runtime/sleep.h"
#include "python/csrc/module.h"
#include "python/csrc/stream_argument.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

Device& GetDevice(int index) { return Runtime::Instance().device(index); }

uintptr_t Handle(const Stream& stream) { return reinterpret_cast<uintptr_t>(&stream); }

}  // namespace

void BindStreams(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  constexpr auto kBorrowed = py::return_value_policy::reference;

  py::class_<Stream, std::unique_ptr<Stream, py::nodelete>>(m, "Stream")
      .def_property_readonly("id", &Stream::id)
      .def_property_readonly("handle", &Handle)
      .def_property_readonly("device_index", [](const Stream& s) { return s.device().index(); })
      .def("query", &Stream::Query)
      .def("synchronize", &Stream::Synchronize, no_gil)
      .def("wait", &Stream::Wait, "event"_a);

  py::class_<Event>(m, "Event")
      .def(py::init([](bool timing) { return std::make_unique<Event>(Runtime::Instance().backend(), timing); }),
           "timing"_a)
      .def_property_readonly("handle", [](const Event& e) { return reinterpret_cast<uintptr_t>(&e); })
      .def("record", &Event::Record, "stream"_a)
      .def("query", &Event::Query)
      .def("synchronize", &Event::Synchronize, no_gil)
      .def("timestamp_ns", &Event::TimestampNs)
      .def("elapsed_ms", &Event::ElapsedMs, "end"_a);

  py::class_<ExternalEvent>(m, "ExternalEvent")
      .def(py::init<>())
      .def_property_readonly("handle", [](const ExternalEvent& e) { return reinterpret_cast<uintptr_t>(&e); })
      .def("record", &ExternalEvent::Record, "stream"_a)
      .def("wait", &ExternalEvent::Wait, "stream"_a)
      .def("reset", &ExternalEvent::Reset, "stream"_a);

  m.def("current_device", &CurrentDevice);
  m.def("set_device", &SetCurrentDevice, "device"_a);
  m.def("current_stream", &CurrentStream, "device"_a, kBorrowed);
  m.def("set_stream", &SetCurrentStream, "stream"_a);
  m.def("default_stream", [](int d) -> Stream& { return GetDevice(d).default_stream(); }, "device"_a, kBorrowed);
  m.def("pool_stream", [](int d) -> Stream& { return PooledStream(d, 0); }, "device"_a, kBorrowed);
  m.def("sync_launch_stream", &PooledSyncLaunchStream, "device"_a, kBorrowed);
  m.def("find_stream", &StreamArgument, "device"_a, "handle"_a, kBorrowed);
  m.def(
      "find_stream_by_id", [](int d, uint64_t id) { return GetDevice(d).FindStream(id); }, "device"_a, "id"_a,
      kBorrowed);
  m.def(
      "sleep", [](Stream& stream, int64_t nanoseconds) { LaunchSleep(stream, std::chrono::nanoseconds(nanoseconds)); },
      "stream"_a, "nanoseconds"_a, no_gil);
  m.def("caller_stream", &CallerStream, "device"_a);
  m.def("stop_device", [](int d) { GetDevice(d).Stop(); }, "device"_a);
  m.def("restart_device", [](int d) { GetDevice(d).Restart(); }, "device"_a, no_gil);
  m.def("device_stopped", [](int d) { return GetDevice(d).stopped(); }, "device"_a);
}

}  // namespace npu::python
