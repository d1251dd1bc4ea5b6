// Rows of float32, float16 or bfloat16 as float32, a block at a time: kernels compute on floats in L1 whatever the
// storage type; float32 rows are used in place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "ep/kernels/convert.h"

namespace npu {

inline constexpr int64_t kRowBlock = 256;

// Read side. The returned pointer is valid until the next Load.
template <class T>
class InBlock {
 public:
  const float* Load(const T* source, int64_t count) {
    ToFloat(source, values_, count);
    return values_;
  }

 private:
  alignas(64) float values_[kRowBlock];
};

template <>
class InBlock<float> {
 public:
  const float* Load(const float* source, int64_t /*count*/) { return source; }
};

// Write side: compute into Values(destination), then Commit to the same destination.
template <class T>
class OutBlock {
 public:
  float* Values(T* /*destination*/) { return values_; }
  void Commit(T* destination, int64_t count) { FromFloat(values_, destination, count); }

 private:
  alignas(64) float values_[kRowBlock];
};

template <>
class OutBlock<float> {
 public:
  float* Values(float* destination) { return destination; }
  void Commit(float* /*destination*/, int64_t /*count*/) {}
};

// Scratch of n floats for a whole row: on the stack if it is short, as heads and hidden sizes are.
class RowScratch {
 public:
  explicit RowScratch(int64_t n) {
    if (n > kInline) long_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(n));
  }
  float* values() { return long_ ? long_.get() : short_; }

 private:
  static constexpr int64_t kInline = 512;
  alignas(64) float short_[kInline];
  std::unique_ptr<float[]> long_;
};

// Read side for rows that are read several times: converts a whole row once. Null stays null.
template <class T>
class InRow {
 public:
  explicit InRow(int64_t n) : n_(n), values_(n) {}
  const float* Load(const T* source) {
    if (source == nullptr) return nullptr;
    ToFloat(source, values_.values(), n_);
    return values_.values();
  }

 private:
  int64_t n_;
  RowScratch values_;
};

template <>
class InRow<float> {
 public:
  explicit InRow(int64_t /*n*/) {}
  const float* Load(const float* source) { return source; }
};

// Calls f(begin, count) for the blocks of a row of n elements.
template <class F>
void ForEachBlock(int64_t n, F&& f) {
  for (int64_t begin = 0; begin < n; begin += kRowBlock) f(begin, std::min(kRowBlock, n - begin));
}

// Fewer elements than this are processed on one thread: a fork and join would cost more than it saves.
inline constexpr int64_t kSerialElements = 16384;

// The grain of a ParallelFor over rows.
inline int64_t RowGrain(int64_t row_elements) {
  return std::max<int64_t>(1, kSerialElements / std::max<int64_t>(1, row_elements));
}

}  // namespace npu
