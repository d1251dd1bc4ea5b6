// npu::Error becomes the Python exception of onnxruntime_npu.errors that says the same.
#pragma once

#include <pybind11/pybind11.h>

namespace npu::python {

void RegisterErrors(pybind11::module_& m);

}  // namespace npu::python
