// Graphs for Python.
#include <pybind11/stl.h>

#include "ep/runtime/current.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

using PoolPair = std::pair<uint64_t, uint64_t>;

void CaptureBegin(Graph& graph, PoolPair pool, const std::string& mode) {
  const CaptureMode parsed = ParseCaptureMode(mode);
  graph.CaptureBegin(CurrentStream(CurrentDevice()), {pool.first, pool.second}, parsed);
}

}  // namespace

void BindGraphs(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::class_<GraphTaskGroup>(m, "GraphTaskGroup").def("__repr__", [](const GraphTaskGroup& g) {
    return Concat("<graph task group of ", g.size, " launches>");
  });
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("capture_begin", &CaptureBegin, "pool"_a, "mode"_a, no_gil)
      .def(
          "capture_end", [](Graph& g) { g.CaptureEnd(CurrentStream(CurrentDevice())); }, no_gil)
      .def(
          "replay", [](Graph& g) { g.Replay(CurrentStream(CurrentDevice())); }, no_gil)
      .def("reset", &Graph::Reset, no_gil)
      .def("pool", [](const Graph& g) { return PoolPair(g.pool().first, g.pool().second); })
      .def_property_readonly("captured", &Graph::captured)
      .def("__len__", &Graph::size)
      .def("json", &Graph::Json);
  m.def("is_capturing", &Graph::IsCapturing, "stream"_a);
  m.def("graph_group_begin", &Graph::BeginGroup, "stream"_a);
  m.def("graph_group_end", &Graph::EndGroup, "stream"_a);
  m.def("graph_update_begin", &Graph::BeginUpdate, "stream"_a, "group"_a, no_gil);
  m.def("graph_update_end", &Graph::EndUpdate, "stream"_a, no_gil);
}

}  // namespace npu::python
