// torch's own shape and type rules for the `out` forms of its operators: its meta functions, with the outputs checked
// and resized as its generated code does.
#pragma once

#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace npu::aten {

inline void PrepareOutput(const at::Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                          const at::TensorOptions& options) {
  TORCH_CHECK(options.dtype() == out.dtype(), "Expected out tensor to have dtype ", options.dtype(), ", but got ",
              out.dtype(), " instead");
  TORCH_CHECK(options.device() == out.device(), "Expected out tensor to have device ", options.device(), ", but got ",
              out.device(), " instead");
  if (at::native::resize_output(out, sizes) && !strides.empty())
    out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

// Of outputs that torch does not convert to.
inline void CheckOutputType(const at::Tensor& out, at::ScalarType dtype) {
  TORCH_CHECK(out.scalar_type() == dtype, "Found dtype ", out.scalar_type(), " but expected ", dtype);
}
// Of outputs of a wider kind of numbers than the result.
inline void CheckCast(at::ScalarType result, const at::Tensor& out) {
  TORCH_CHECK(at::canCast(result, out.scalar_type()), "result type ", result,
              " can't be cast to the desired output type ", out.scalar_type());
}

// For elementwise operators that have no meta function: checks and shapes `out` as torch's iterator does. A new `out`
// gets the layout of the inputs; one that is also an input is not resized.
inline void InferBroadcast(const at::Tensor& out, std::initializer_list<at::Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(true).check_all_same_dtype(false).allow_cpu_scalars(true).add_output(out);
  // Scalars of the host decide neither shape nor strides, and the iterator takes only one of them.
  const auto decides = [&](const at::Tensor& input) { return out.is_cpu() || !input.is_cpu() || input.dim() > 0; };
  const bool any = std::any_of(inputs.begin(), inputs.end(), decides);
  for (const at::Tensor& input : inputs)
    if (!any || decides(input)) config.add_owned_const_input(input);
  config.build();
}

template <class Meta, size_t outputs = 1>
class OutputMeta final : public Meta {
 public:
  template <class... Tensors>
  explicit OutputMeta(Tensors&... out) : outputs_{out...} {}

  const at::Tensor& maybe_get_output(int64_t i) override { return outputs_[static_cast<size_t>(i)]; }
  void set_output_raw_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::TensorOptions options) override {
    PrepareOutput(outputs_[static_cast<size_t>(i)], sizes, strides, options);
    if constexpr (std::is_base_of_v<at::TensorIteratorBase, Meta>)
      Meta::set_output_raw_strided(i, sizes, strides, options);
  }
  void set_output_strided(int64_t i, at::IntArrayRef sizes, at::IntArrayRef strides,
                          at::TensorOptions options) override {
    set_output_raw_strided(i, sizes, strides, options);
  }

 private:
  std::array<at::Tensor, outputs> outputs_;
};

// Shapes `out` for an operator's arguments.
template <class Meta, class... Args>
void Infer(at::Tensor& out, const Args&... args) {
  OutputMeta<Meta>(out).meta(args...);
}
template <class Meta, class... Args>
void InferTwo(at::Tensor& first, at::Tensor& second, const Args&... args) {
  OutputMeta<Meta, 2>(first, second).meta(args...);
}

// The same for an elementwise operator; returns the dtype in which it computes.
template <class Meta, class... Args>
at::ScalarType InferElementwise(at::Tensor& out, const Args&... args) {
  OutputMeta<Meta> meta(out);
  meta.meta(args...);
  return meta.maybe_common_dtype().value_or(out.scalar_type());
}

}  // namespace npu::aten
