// _torch: the device `npu` for torch. Loading it registers everything; Python names it (torch_device/).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace py = pybind11;

PYBIND11_MODULE(_torch, m) {
  m.def("fallback_counts", &FallbackCounts);
  m.def("reset_fallback_counts", &ResetFallbackCounts);
  m.def("draw_seed", [](int device) { return DrawSeed(SourceOf(std::nullopt, device), CurrentStream(device)); });
  m.def("default_generator",
        [](int device) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(DefaultGenerator(device))); });
}

}  // namespace npu::aten
