// The parts of _C, one source file each.
#pragma once

#include <pybind11/pybind11.h>

namespace npu::python {

void BindDevice(pybind11::module_& m);   // devices, memory counters, ISA
void BindKernels(pybind11::module_& m);  // eager calls
void BindOpTable(pybind11::module_& m);  // what the registry holds

}  // namespace npu::python
