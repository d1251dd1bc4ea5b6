// The parts of _C, one source file each.
#pragma once

#include <pybind11/pybind11.h>

namespace npu::python {

void BindDevice(pybind11::module_& m);       // devices, ISA
void BindMemory(pybind11::module_& m);       // the caching allocator
void BindHostMemory(pybind11::module_& m);   // pinned memory
void BindStreams(pybind11::module_& m);      // streams, events, the thread's device and stream
void BindGraphs(pybind11::module_& m);       // capture and replay
void BindDiagnostics(pybind11::module_& m);  // launch traces, dumps of tensors
void BindKernels(pybind11::module_& m);      // eager calls
void BindOpTable(pybind11::module_& m);      // the operator registry
void BindDistributed(pybind11::module_& m);  // where torch_npu has the classes of its process group

}  // namespace npu::python
