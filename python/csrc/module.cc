// _C: the runtime for Python. Private: the package's modules give it names and documentation.
#include "python/csrc/module.h"

#include "python/csrc/errors.h"

PYBIND11_MODULE(_C, m) {
  npu::python::RegisterErrors(m);
  npu::python::BindDevice(m);
  npu::python::BindMemory(m);
  npu::python::BindHostMemory(m);
  npu::python::BindStreams(m);
  npu::python::BindGraphs(m);
  npu::python::BindDiagnostics(m);
  npu::python::BindKernels(m);
  npu::python::BindOpTable(m);
  npu::python::BindDistributed(m);
}
