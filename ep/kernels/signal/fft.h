// Discrete Fourier transforms of any length, in double: for lengths of small prime factors by factors, else as a
// convolution of a power of two (Bluestein).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu::signal {

// Without the checks for NaN of std::complex.
struct Complex {
  double re, im;
};
inline Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
inline Complex operator-(Complex a, Complex b) { return {a.re - b.re, a.im - b.im}; }
inline Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
inline Complex Conjugate(Complex a) { return {a.re, -a.im}; }

// A length that a model or a caller gives.
inline int64_t CheckedLength(const char* op, const char* name, int64_t length) {
  constexpr int64_t kLongest = int64_t{1} << 30;
  NPU_OP_CHECK(op, length >= 1 && length <= kLongest, "expected ", name, " from 1 to 2^30, got ", length);
  return length;
}

class Fft {
 public:
  explicit Fft(int64_t length);

  int64_t length() const { return length_; }
  int64_t room() const { return padded_ ? padded_->length_ + padded_->room() : length_; }
  // values[k] becomes the sum of values[n] exp(-2 pi i k n / length). `room` has room() values. The inverse, without
  // its factor 1 / length, is the conjugate of what this makes of the conjugates.
  void Transform(Complex* values, Complex* room) const;

 private:
  void ByFactors(Complex* values, Complex* room) const;
  void ByConvolution(Complex* values, Complex* room) const;

  int64_t length_;
  std::vector<Complex> turns_;    // exp(-2 pi i k / length); by convolution, exp(-pi i k^2 / length)
  std::vector<int64_t> factors_;  // their product is the length
  std::unique_ptr<Fft> padded_;   // of the convolution
  std::vector<Complex> filter_;   // its transformed right side
};

// Transforms `count` signals on the pool: load(i, values) writes signal i, store(i, values) reads what became of it.
template <class Load, class Store>
void TransformAll(const Fft& fft, int64_t count, const Load& load, const Store& store) {
  ParallelFor(count, std::max<int64_t>(1, kMathGrain / fft.length()), [&](int64_t begin, int64_t end) {
    std::vector<Complex> values(static_cast<size_t>(fft.length())), room(static_cast<size_t>(fft.room()));
    for (int64_t i = begin; i < end; ++i) {
      load(i, values.data());
      fft.Transform(values.data(), room.data());
      store(i, values.data());
    }
  });
}

}  // namespace npu::signal
