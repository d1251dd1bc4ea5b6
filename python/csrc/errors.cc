#include "python/csrc/errors.h"

namespace npu::python {
namespace py = pybind11;

namespace {

py::object ExceptionType(ErrorCode code) {
  const py::module_ errors = py::module_::import("onnxruntime_npu.errors");
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return errors.attr("ArgumentError");
    case ErrorCode::kUnsupported:
      return errors.attr("UnsupportedError");
    case ErrorCode::kOutOfMemory:
      return errors.attr("out_of_memory_type")();
    case ErrorCode::kDeviceError:
      return errors.attr("DeviceError");
    case ErrorCode::kInternal:
      break;
  }
  return py::reinterpret_borrow<py::object>(PyExc_RuntimeError);
}

}  // namespace

void SetPythonError(const Error& error) { py::set_error(ExceptionType(error.code()), error.what()); }

void RegisterErrors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr p) {
    try {
      if (p) std::rethrow_exception(p);
    } catch (const Error& e) {
      SetPythonError(e);
    }
  });
}

}  // namespace npu::python
