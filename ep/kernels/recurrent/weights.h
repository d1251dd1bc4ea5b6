// The weight matrices of a recurrent layer, [directions, gates * hidden, columns], which each step multiplies with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/kernels/recurrent/one_row.h"

namespace npu::recurrent {

// c = a * bᵀ for some rows of a weight, b, in float or double.
template <class T>
class Product {
 public:
  using C = ComputeType<T>;
  Product(gemm::Matrix columns, gemm::PackedMatrix packed) : columns_(columns), packed_(packed) {}

  int64_t columns() const { return columns_.columns; }
  // Rows of `a` and `c` are dense. `turn`: how often this was called before, of the product of a step.
  void operator()(const T* a, int64_t rows, C* c, int64_t turn = 0) const {
    const gemm::Matrix left = gemm::Matrix::RowMajor(a, rows, columns_.rows);
    if constexpr (std::is_same_v<T, double>) {
      PlainProduct<double, double>(left, columns_, c);
    } else if (columns_.rows == 0) {
      std::fill(c, c + rows * columns(), 0.0f);
    } else if (std::is_same_v<T, float> && rows == 1) {
      MultiplyOneRow(reinterpret_cast<const float*>(a), packed_, turn, c);
    } else {
      gemm::Multiply(left, packed_, {c, DType::kFloat32, columns()});
    }
  }

 private:
  gemm::Matrix columns_;  // of the weight's rows
  gemm::PackedMatrix packed_;
};

// A weight in panel order: kept if it is a constant, else packed by each call.
class Weights {
 public:
  // `parts`: how many gates are multiplied together, in order.
  explicit Weights(std::vector<int64_t> parts) : parts_(std::move(parts)) {
    for (const int64_t part : parts_) gates_ += part;
  }

  // Keeps panels of a constant, so that it is not needed any more; false if its type or shape has none.
  bool Keep(const char* op, const TensorView& constant, Stream& stream) {
    if (constant.shape.rank() != 3 || constant.elements() == 0 || constant.shape[1] % gates_ != 0 ||
        !gemm::Supports(constant.dtype))
      return false;
    ForEachPart(constant, [&](int64_t, const gemm::Matrix& columns) {
      kept_.push_back(std::make_unique<gemm::PackedWeight>());
      kept_.back()->Pack(op, constant.dtype, columns, stream);
    });
    view_ = constant;
    view_.data = nullptr;
    return true;
  }
  // The weight of a call, without data if panels were kept.
  TensorView Of(const TensorView& given) const { return kept_.empty() ? given : view_; }

  // Bytes of the panels of a weight that is no constant.
  size_t ScratchBytes(const TensorView& weight) const {
    size_t bytes = 0;
    if (kept_.empty() && gemm::Supports(weight.dtype))
      ForEachPart(weight, [&](int64_t, const gemm::Matrix& columns) { bytes += PanelBytes(weight.dtype, columns); });
    return bytes;
  }
  // The products with each part, for each direction; packs into `scratch` what is not kept. In a launch.
  template <class T>
  std::vector<std::vector<Product<T>>> Products(const TensorView& weight, char* scratch) const {
    std::vector<std::vector<Product<T>>> products(static_cast<size_t>(weight.shape[0]));
    size_t item = 0;
    ForEachPart(weight, [&](int64_t direction, const gemm::Matrix& columns) {
      gemm::PackedMatrix packed;
      if (!kept_.empty()) {
        packed = kept_[item++]->matrix(columns);
      } else if (gemm::Supports(weight.dtype) && columns.rows > 0) {
        gemm::Pack(weight.dtype, columns, scratch, weight.dtype);
        packed = {scratch, weight.dtype, weight.dtype, columns.rows, columns.columns};
        scratch += PanelBytes(weight.dtype, columns);
      }
      products[static_cast<size_t>(direction)].emplace_back(columns, packed);
    });
    return products;
  }

 private:
  static size_t PanelBytes(DType dtype, const gemm::Matrix& columns) {
    return (gemm::PackedBytes(dtype, columns.rows, columns.columns) + 63) / 64 * 64;
  }

  // f(direction, the rows of one part as columns).
  template <class F>
  void ForEachPart(const TensorView& weight, const F& f) const {
    const int64_t hidden = weight.shape[1] / gates_, depth = weight.shape[2];
    const char* rows = weight.as<const char>();
    for (int64_t d = 0; d < weight.shape[0]; ++d) {
      for (const int64_t part : parts_) {
        f(d, gemm::Matrix::RowMajor(rows, part * hidden, depth).Transposed());
        if (rows != nullptr) rows += BytesFor(weight.dtype, part * hidden * depth);
      }
    }
  }

  std::vector<int64_t> parts_;
  int64_t gates_ = 0;
  std::vector<std::unique_ptr<gemm::PackedWeight>> kept_;
  TensorView view_;
};

}  // namespace npu::recurrent
