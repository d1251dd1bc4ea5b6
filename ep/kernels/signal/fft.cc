#include "ep/kernels/signal/fft.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

namespace npu::signal {
namespace {

constexpr int64_t kLargestFactor = 61;  // with larger ones, the convolution is faster

// exp(-2 pi i k / n).
Complex Turn(int64_t k, int64_t n) {
  const double angle = -2 * std::numbers::pi * static_cast<double>(k) / static_cast<double>(n);
  return {std::cos(angle), std::sin(angle)};
}

// The factors of n, fours first; empty if one is too large.
std::vector<int64_t> FactorsOf(int64_t n) {
  std::vector<int64_t> factors;
  for (int64_t factor : {4, 2}) {
    for (; n % factor == 0; n /= factor) factors.push_back(factor);
  }
  for (int64_t factor = 3; n > 1 && factor <= kLargestFactor; factor += 2) {
    for (; n % factor == 0; n /= factor) factors.push_back(factor);
  }
  return n == 1 ? factors : std::vector<int64_t>();
}

// One step of a transform of length `step` * r * m that sorts itself: the r values x[q + step * (p + t * m)] of each p
// and q become the values y[q + step * (r * p + k)].
struct Step {
  int64_t radix, m, step;
  const Complex* turns;  // of the whole length, radix * m * step

  void Run(const Complex* x, Complex* y) const {
    for (int64_t p = 0; p < m; ++p) {
      const Complex* from = x + step * p;
      Complex* to = y + step * radix * p;
      if (radix == 2) {
        Two(from, to, turns[p * step]);
      } else if (radix == 4) {
        Four(from, to, turns[p * step], turns[2 * p * step], turns[3 * p * step]);
      } else {
        for (int64_t k = 0; k < radix; ++k) Any(from, to + step * k, k, turns[p * k * step]);
      }
    }
  }

 private:
  void Two(const Complex* x, Complex* y, Complex turn) const {
    for (int64_t q = 0; q < step; ++q) {
      const Complex a = x[q], b = x[q + step * m];
      y[q] = a + b;
      y[q + step] = (a - b) * turn;
    }
  }

  void Four(const Complex* x, Complex* y, Complex once, Complex twice, Complex thrice) const {
    const int64_t apart = step * m;
    for (int64_t q = 0; q < step; ++q) {
      const Complex even = x[q] + x[q + 2 * apart], odd = x[q + apart] + x[q + 3 * apart];
      const Complex way = x[q] - x[q + 2 * apart], other = x[q + apart] - x[q + 3 * apart];
      const Complex turned{other.im, -other.re};  // times -i
      y[q] = even + odd;
      y[q + step] = (way + turned) * once;
      y[q + 2 * step] = (even - odd) * twice;
      y[q + 3 * step] = (way - turned) * thrice;
    }
  }

  void Any(const Complex* x, Complex* y, int64_t k, Complex turn) const {
    std::copy_n(x, step, y);
    for (int64_t t = 1; t < radix; ++t) {
      const Complex by = turns[t * k % radix * (m * step)];
      const Complex* from = x + step * t * m;
      for (int64_t q = 0; q < step; ++q) y[q] = y[q] + from[q] * by;
    }
    for (int64_t q = 0; q < step; ++q) y[q] = y[q] * turn;
  }
};

}  // namespace

Fft::Fft(int64_t length) : length_(length), turns_(static_cast<size_t>(length)), factors_(FactorsOf(length)) {
  const bool by_factors = length == 1 || !factors_.empty();
  for (int64_t k = 0; k < length; ++k)
    turns_[static_cast<size_t>(k)] = by_factors ? Turn(k, length) : Turn(k * k % (2 * length), 2 * length);
  if (by_factors) return;
  // X[k] = turn[k] * sum of x[n] turn[n] * conj(turn[k - n]): a convolution, whose right side is the same from both
  // ends.
  padded_ = std::make_unique<Fft>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * length - 1))));
  const auto whole = static_cast<size_t>(padded_->length());
  filter_.assign(whole, Complex{0, 0});
  for (size_t k = 0; k < turns_.size(); ++k) filter_[k] = filter_[(whole - k) % whole] = Conjugate(turns_[k]);
  std::vector<Complex> room(static_cast<size_t>(padded_->room()));
  padded_->Transform(filter_.data(), room.data());
}

void Fft::Transform(Complex* values, Complex* room) const {
  if (padded_) {
    ByConvolution(values, room);
  } else {
    ByFactors(values, room);
  }
}

void Fft::ByFactors(Complex* values, Complex* room) const {
  Complex *from = values, *to = room;
  int64_t rest = length_, step = 1;
  for (const int64_t radix : factors_) {
    rest /= radix;
    Step{radix, rest, step, turns_.data()}.Run(from, to);
    step *= radix;
    std::swap(from, to);
  }
  if (from != values) std::copy_n(from, length_, values);
}

void Fft::ByConvolution(Complex* values, Complex* room) const {
  const int64_t whole = padded_->length();
  Complex* product = room;
  for (int64_t k = 0; k < length_; ++k) product[k] = values[k] * turns_[static_cast<size_t>(k)];
  std::fill(product + length_, product + whole, Complex{0, 0});
  padded_->Transform(product, room + whole);
  for (int64_t k = 0; k < whole; ++k) product[k] = Conjugate(product[k] * filter_[static_cast<size_t>(k)]);
  padded_->Transform(product, room + whole);  // the inverse, conjugated
  const double scale = 1 / static_cast<double>(whole);
  for (int64_t k = 0; k < length_; ++k) {
    const Complex value = Conjugate(product[k]) * turns_[static_cast<size_t>(k)];
    values[k] = {value.re * scale, value.im * scale};
  }
}

}  // namespace npu::signal
