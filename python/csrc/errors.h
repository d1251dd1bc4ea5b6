// Translates npu::Error to the corresponding exception of onnxruntime_npu.errors.
#pragma once

#include <pybind11/pybind11.h>

#include "ep/runtime/error.h"

namespace npu::python {

// Sets Python's error. The caller holds the GIL.
void SetPythonError(const Error& error);

void RegisterErrors(pybind11::module_& m);

}  // namespace npu::python
