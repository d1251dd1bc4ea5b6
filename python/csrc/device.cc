#include "ep/runtime/device.h"

#include <pybind11/stl.h>

#include "ep/runtime/blocking.h"
#include "ep/runtime/isa.h"
#include "ep/runtime/thread_pool.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

Device& GetDevice(int index) { return Runtime::Instance().device(index); }

py::dict Properties(int index) {
  const DeviceProperties& p = GetDevice(index).properties();
  return py::dict("name"_a = p.name, "total_memory"_a = p.total_memory, "compute_units"_a = p.compute_units,
                  "isa"_a = p.isa, "backend"_a = Runtime::Instance().backend().name());
}

py::dict CpuFeatureDict() {
  const CpuFeatures& f = Features();
  return py::dict("avx2"_a = f.avx2, "fma"_a = f.fma, "f16c"_a = f.f16c, "avx_vnni"_a = f.avx_vnni,
                  "avx512"_a = f.avx512, "avx512_bf16"_a = f.avx512_bf16, "avx512_fp16"_a = f.avx512_fp16,
                  "avx512_vnni"_a = f.avx512_vnni, "amx_tile"_a = f.amx_tile, "amx_bf16"_a = f.amx_bf16,
                  "amx_int8"_a = f.amx_int8, "amx_fp16"_a = f.amx_fp16, "neon"_a = f.neon, "neon_bf16"_a = f.neon_bf16);
}

// The awaited work may need the interpreter: a callback, a thread that opens a gate.
void* ReleaseGil() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void RestoreGil(void* thread) { PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); }

}  // namespace

void BindDevice(py::module_& m) {
  MayBlock::SetHooks(&ReleaseGil, &RestoreGil);
  m.def("device_count", [] { return Runtime::Instance().device_count(); });
  m.def("device_properties", &Properties, "device"_a = 0);
  m.def(
      "synchronize", [](int device) { GetDevice(device).Synchronize(); }, "device"_a = 0,
      py::call_guard<py::gil_scoped_release>());
  m.def("isa", [] { return NameOf(ActiveIsa()); });
  m.def("cpu_features", &CpuFeatureDict);
  m.def("num_threads", &NumThreads);
}

}  // namespace npu::python
