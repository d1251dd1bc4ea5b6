// Shapes and views. A view owns nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "ep/runtime/dtype.h"
#include "ep/runtime/error.h"

namespace npu {

// A shape with inline storage: it is copied into every launch and must not touch the heap.
class Shape {
 public:
  static constexpr int kMaxRank = 12;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.begin(), dims.size()) {}
  explicit Shape(const std::vector<int64_t>& dims) : Shape(dims.data(), dims.size()) {}
  Shape(const int64_t* dims, size_t rank) {
    NPU_CHECK(rank <= kMaxRank, "expected a tensor of rank <= ", kMaxRank, ", got rank ", rank);
    rank_ = static_cast<int>(rank);
    for (int i = 0; i < rank_; ++i) dims_[i] = dims[i];
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t& operator[](int i) { return dims_[i]; }
  int64_t back() const { return dims_[rank_ - 1]; }
  const int64_t* begin() const { return dims_.data(); }
  const int64_t* end() const { return dims_.data() + rank_; }
  void push_back(int64_t d) {
    NPU_CHECK(rank_ < kMaxRank, "expected a tensor of rank <= ", kMaxRank);
    dims_[rank_++] = d;
  }
  // Product of the dimensions in [from, to); throws when it overflows int64.
  int64_t Elements(int from, int to) const;
  int64_t Elements() const { return Elements(0, rank_); }
  bool operator==(const Shape& o) const {
    if (rank_ != o.rank_) return false;
    for (int i = 0; i < rank_; ++i)
      if (dims_[i] != o.dims_[i]) return false;
    return true;
  }
  bool operator!=(const Shape& o) const { return !(*this == o); }
  std::string ToString() const;  // "[2, 3]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};
inline std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.ToString(); }

// Resolves a negative axis; throws when it is outside [-rank, rank).
int NormalizeAxis(const char* op, int64_t axis, int rank);
// NumPy broadcasting; throws "[op] expected broadcastable shapes, got a and b".
Shape BroadcastShapes(const char* op, const Shape& a, const Shape& b);

// A dense row-major view. `data` is null exactly when the tensor is absent or has no elements;
// use `present` to tell an omitted optional tensor from an empty one.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kUndefined;
  bool present = false;
  Shape shape;

  explicit operator bool() const { return present; }
  int64_t elements() const { return shape.Elements(); }
  size_t bytes() const { return BytesFor(dtype, elements()); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace npu
