#include <pybind11/stl.h>

#include "ep/runtime/device.h"
#include "ep/runtime/fault_injection.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/tensor_dump.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

void BindDiagnostics(py::module_& m) {
  m.def("start_launch_trace", &LaunchTrace::Start);  // False: one is already running
  m.def("launch_trace_runs", &LaunchTrace::On);
  m.def("steady_to_system_ns", &SteadyToSystemNs);
  m.def("stop_launch_trace", [] {
    std::vector<LaunchSpan> spans;
    {
      py::gil_scoped_release no_gil;  // an awaited launch may be a Python function
      spans = LaunchTrace::Stop();
    }
    py::list out;
    for (const LaunchSpan& s : spans) out.append(py::make_tuple(s.op, s.device, s.stream, s.begin_ns, s.end_ns));
    return out;
  });
  m.def(
      "start_dump",
      [](std::string path, bool inputs, bool outputs, std::vector<std::string> ops) {
        TensorDump::Start({std::move(path), inputs, outputs, std::move(ops)});
      },
      "path"_a, "inputs"_a, "outputs"_a, "ops"_a);
  m.def("stop_dump", &TensorDump::Stop);

  // With ORT_NPU_FAULT_INJECTION=1: see fault_injection.h.
  constexpr auto faults = []() -> FaultInjection& { return FaultInjection::Of(Runtime::Instance().backend()); };
  m.def(
      "arm_fault", [=](const std::string& call, int64_t nth, int64_t times) { faults().Arm(call, nth, times); },
      "call"_a, "nth"_a, "times"_a = 1);
  m.def("disarm_fault", [=] { return faults().Disarm(); });
  m.def("backend_calls", [=] { return faults().calls(); });
  m.def("backend_objects", [=] { return faults().held(); });
}

}  // namespace npu::python
