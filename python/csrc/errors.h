// npu::Error becomes the Python exception of onnxruntime_npu.errors that says the same.
#pragma once

#include <pybind11/pybind11.h>

#include "ep/runtime/error.h"

namespace npu::python {

// Sets Python's error, whose interpreter lock the caller holds.
void SetPythonError(const Error& error);

void RegisterErrors(pybind11::module_& m);

}  // namespace npu::python
