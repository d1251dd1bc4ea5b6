// Tensors of the C++ tests: host memory that ends where the data ends, so that AddressSanitizer sees every access
// out of bounds.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <type_traits>
#include <vector>

#include "ep/runtime/dtype.h"
#include "ep/runtime/error.h"
#include "ep/runtime/tensor.h"

namespace npu::test {

// Calls f(T{}) with the C++ type of a dtype.
template <class F>
decltype(auto) DispatchElement(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kFloat16:
      return f(Float16{});
    case DType::kBFloat16:
      return f(BFloat16{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUInt8:
      return f(uint8_t{});
    case DType::kUInt16:
      return f(uint16_t{});
    case DType::kUInt32:
      return f(uint32_t{});
    case DType::kUInt64:
      return f(uint64_t{});
    case DType::kBool:
      return f(bool{});
    default:
      Fail(ErrorCode::kUnsupported, "tests hold no elements of ", NameOf(dtype));
  }
}

// Copies share the buffer, as a framework's tensors do.
class HostTensor {
 public:
  HostTensor() = default;  // an absent optional input
  HostTensor(DType dtype, const Shape& shape) : dtype_(dtype), shape_(shape), present_(true) {
    const size_t bytes = BytesFor(dtype, shape.Elements());
    if (bytes == 0) return;
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) throw std::bad_alloc();
    std::memset(memory, 0xCD, bytes);  // exposes elements that a kernel does not write
    data_ = std::shared_ptr<void>(memory, std::free);
  }

  template <class T>
  static HostTensor Of(const Shape& shape, const std::vector<T>& values) {
    HostTensor t(DTypeOf<T>::value, shape);
    NPU_CHECK(static_cast<int64_t>(values.size()) == t.elements(), "expected ", t.elements(), " values, got ",
              values.size());
    std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }
  // The values are rounded to `dtype`.
  static HostTensor From(DType dtype, const Shape& shape, const std::vector<double>& values) {
    HostTensor t(dtype, shape);
    NPU_CHECK(static_cast<int64_t>(values.size()) == t.elements(), "expected ", t.elements(), " values, got ",
              values.size());
    for (size_t i = 0; i < values.size(); ++i) t.Set(static_cast<int64_t>(i), values[i]);
    return t;
  }
  // Uniform in [low, high); integers for the integer types.
  static HostTensor Random(DType dtype, const Shape& shape, uint64_t seed, double low = -1.0, double high = 1.0) {
    HostTensor t(dtype, shape);
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    for (int64_t i = 0; i < t.elements(); ++i) t.Set(i, uniform(generator));
    return t;
  }

  // The beginning of this tensor's memory as another tensor.
  HostTensor As(DType dtype, const Shape& shape) const {
    HostTensor t;
    t.dtype_ = dtype;
    t.shape_ = shape;
    t.present_ = true;
    t.data_ = data_;
    NPU_CHECK(t.view().bytes() <= view().bytes(), "expected at most ", view().bytes(), " bytes, got ",
              t.view().bytes());
    return t;
  }

  bool present() const { return present_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return present_ ? shape_.Elements() : 0; }
  template <class T>
  T* data() const {
    return static_cast<T*>(data_.get());
  }
  TensorView view() const { return TensorView{data_.get(), dtype_, present_, shape_}; }

  double operator[](int64_t i) const {
    return DispatchElement(dtype_, [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        return static_cast<double>(static_cast<float>(data<T>()[i]));
      else
        return static_cast<double>(data<T>()[i]);
    });
  }
  void Set(int64_t i, double value) {
    DispatchElement(dtype_, [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        data<T>()[i] = T(static_cast<float>(value));
      else
        data<T>()[i] = static_cast<T>(value);
    });
  }
  std::vector<double> values() const {
    std::vector<double> out(static_cast<size_t>(elements()));
    for (size_t i = 0; i < out.size(); ++i) out[i] = (*this)[static_cast<int64_t>(i)];
    return out;
  }

 private:
  DType dtype_ = DType::kUndefined;
  Shape shape_;
  bool present_ = false;
  std::shared_ptr<void> data_;
};

}  // namespace npu::test
