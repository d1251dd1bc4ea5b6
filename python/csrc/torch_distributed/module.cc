// _torch_distributed: the process group `hccl` for torch.distributed. Built with torch's own pybind11, so that torch
// knows its classes.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include "python/csrc/torch_distributed/hccl_backend.h"

namespace py = pybind11;

PYBIND11_MODULE(_torch_distributed, m) {
  using npu::distributed::HcclBackend;
  py::module_::import("torch._C._distributed_c10d");  // the base classes
  py::class_<HcclBackend, c10::intrusive_ptr<HcclBackend>, c10d::Backend> group(m, "ProcessGroupHCCL");
  py::class_<HcclBackend::Options, c10::intrusive_ptr<HcclBackend::Options>, c10d::Backend::Options>(group, "Options")
      .def(py::init<>())
      .def_readwrite("hccl_config", &HcclBackend::Options::hccl_config);
  group
      .def(py::init<c10::intrusive_ptr<c10d::Backend>, c10::intrusive_ptr<c10d::Store>, std::string,
                    c10::intrusive_ptr<HcclBackend::Options>, std::chrono::milliseconds,
                    npu::distributed::GroupCommunicator::ConnectHost>(),
           py::arg("host"), py::arg("store"), py::arg("name"), py::arg("options"), py::arg("timeout"),
           py::arg("connect"))
      .def_property_readonly("options", [](HcclBackend& self) { return self.getBackendOptions(); })
      .def(
          "get_hccl_comm_name", [](HcclBackend& self, int, bool init_comm) { return self.TakeName(init_comm); },
          py::arg("rank"), py::arg("init_comm") = true)
      .def("_set_hccl_comm_name", &HcclBackend::SetName, py::arg("name"))
      // The works of the calls between the two are complete when the second returns.
      .def("_group_start", &HcclBackend::startCoalescing, py::call_guard<py::gil_scoped_release>())
      .def(
          "_group_end", [](HcclBackend& self) { self.endCoalescing()->wait(); },
          py::call_guard<py::gil_scoped_release>());
}
