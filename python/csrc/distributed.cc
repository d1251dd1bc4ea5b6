// `_C._distributed_c10d.ProcessGroupHCCL`, where scripts of torch_npu look for its options. The class needs torch, so
// it is loaded when it is asked for.
#include <string>

#include "python/csrc/module.h"

namespace py = pybind11;

namespace npu::python {

void BindDistributed(py::module_& m) {
  py::module_ names = m.def_submodule("_distributed_c10d");
  const std::string package = py::str(m.attr("__name__").attr("rpartition")(".")[py::int_(0)]);
  names.def("__getattr__", [package](const std::string& name) {
    if (name != "ProcessGroupHCCL")
      throw py::attribute_error("module '_distributed_c10d' has no attribute '" + name + "'");
    return py::module_::import((package + "._torch_distributed").c_str()).attr(name.c_str());
  });
}

}  // namespace npu::python
