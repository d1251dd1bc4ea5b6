// The boundary to ORT's C ABI: incoming statuses become exceptions, outgoing exceptions become statuses, and every
// object that ORT hands over for release gets an owner.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "ep/runtime/dtype.h"
#include "ep/runtime/error.h"

namespace npu::provider {

// ORT's function tables. A process may hold two ORT images, so they belong to a factory and never to a global.
struct Api {
  const OrtApi& ort;
  const OrtEpApi& ep;

  // Throws the error that ORT reports, and releases the status.
  void Check(OrtStatus* status) const {
    if (status == nullptr) [[likely]]
      return;
    std::string message = ort.GetErrorMessage(status);
    ort.ReleaseStatus(status);
    throw Error(ErrorCode::kInternal, message);
  }
  bool Succeeded(OrtStatus* status) const {
    if (status == nullptr) return true;
    ort.ReleaseStatus(status);
    return false;
  }
};

// Never ORT_EP_FAIL: on that code ORT's Python binding silently rebuilds the session on the CPU.
inline OrtErrorCode StatusCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ORT_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported:
      return ORT_NOT_IMPLEMENTED;
    default:
      return ORT_FAIL;
  }
}

// Runs `f` behind the C ABI: every exception leaves as a status.
template <class F>
OrtStatus* Guard(const OrtApi& api, F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return nullptr;
  } catch (const Error& error) {
    return api.CreateStatus(StatusCodeOf(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ORT_FAIL, "out of host memory");
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_FAIL, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, "unknown error in NPUExecutionProvider");
  }
}

template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

template <class T, class Release>
Owned<T> Own(T* object, Release release) {
  return Owned<T>(object, release);
}

// Reads a string through one of ORT's "size first, then characters" functions.
template <class F>
std::string ReadString(const Api& api, F&& read) {
  size_t size = 0;
  api.Check(read(nullptr, &size));
  std::string text(size, '\0');
  if (size != 0) api.Check(read(text.data(), &size));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

// The runtime's dtype for an element type; kUndefined if it has none. The numbers are the same up to float4e2m1.
inline DType DTypeOfElement(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2:
      return DType::kUInt2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT2:
      return DType::kInt2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0:
      return DType::kFloat8E8M0;
    default:
      return type > ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0 ? DType::kUndefined : static_cast<DType>(type);
  }
}

}  // namespace npu::provider
