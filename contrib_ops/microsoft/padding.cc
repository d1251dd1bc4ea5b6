// RemovePadding and RestorePadding: the rows of sequences [batch, sequence, hidden] without those behind the end of
// each, and back. token_offset [batch, sequence] lists the rows that stay, then the others.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "contrib_ops/microsoft/microsoft_op.h"
#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr DTypeSet kTypes{DType::kFloat32, DType::kFloat16};
constexpr DTypeSet kInt32{DType::kInt32};

class RemovePaddingKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "RemovePadding";
  explicit RemovePaddingKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() == 3, "expected input [batch, sequence, hidden], got shape ", x.shape);
    const int64_t batch = x.shape[0], length = x.shape[1], hidden = x.shape[2];
    CheckRowCount(kOp, Shape{batch, length}.Elements());
    const std::vector<int64_t> counts = ReadHostInts(kOp, "sequence_token_count", ctx.Input(1));
    NPU_OP_CHECK(kOp, static_cast<int64_t>(counts.size()) == batch, "expected sequence_token_count [", batch, "], got ",
                 counts.size(), " values");
    std::vector<int32_t> offsets, padding, ends{0};
    int64_t longest = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t count = counts[static_cast<size_t>(b)];
      NPU_OP_CHECK(kOp, count >= 0 && count <= length, "expected sequences of 0 to ", length, " tokens, got ", count);
      longest = std::max(longest, count);
      for (int64_t i = 0; i < length; ++i)
        (i < count ? offsets : padding).push_back(static_cast<int32_t>(b * length + i));
      ends.push_back(static_cast<int32_t>(offsets.size()));
    }
    const auto tokens = static_cast<int64_t>(offsets.size());
    offsets.insert(offsets.end(), padding.begin(), padding.end());
    const TensorView y = ctx.Output(0, x.dtype, Shape{tokens, hidden});
    const TensorView token_offset = ctx.Output(1, DType::kInt32, Shape{batch, length});
    const TensorView cumulated = ctx.Output(2, DType::kInt32, Shape{batch + 1});
    const TensorView most = ctx.Output(3, DType::kInt32, Shape{1});
    ctx.Launch(kOp, [=, offsets = std::move(offsets), ends = std::move(ends)] {
      const auto copy = [](const std::vector<int32_t>& from, const TensorView& to) {
        if (!from.empty()) std::memcpy(to.data, from.data(), from.size() * sizeof(int32_t));
      };
      GatherRows(x.data, tokens, static_cast<int64_t>(BytesFor(x.dtype, hidden)), y.data,
                 [&](int64_t i) { return offsets[static_cast<size_t>(i)]; });
      copy(offsets, token_offset);
      copy(ends, cumulated);
      most.as<int32_t>()[0] = static_cast<int32_t>(longest);
    });
  }
};

class RestorePaddingKernel final : public Kernel {
 public:
  static constexpr const char* kOp = "RestorePadding";
  explicit RestorePaddingKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), offsets = ctx.Input(1);
    NPU_OP_CHECK(kOp, x.shape.rank() == 2 && offsets.shape.rank() == 2 && x.shape[0] <= offsets.elements(),
                 "expected input [tokens, hidden] and token_offset [batch, sequence] of as many rows or more, got ",
                 x.shape, " and ", offsets.shape);
    const int64_t tokens = x.shape[0], hidden = x.shape[1], rows = offsets.elements();
    const TensorView y = ctx.Output(0, x.dtype, Shape{offsets.shape[0], offsets.shape[1], hidden});
    if (y.elements() == 0) return;
    ctx.Launch(kOp, [=] {
      const CheckedNumbers row(kOp, "values of token_offset", offsets.as<const int32_t>(), 0, rows);
      row.CheckFirst(tokens);
      const auto bytes = BytesFor(x.dtype, hidden);
      std::memset(y.data, 0, y.bytes());
      for (int64_t i = 0; i < tokens; ++i)
        std::memcpy(y.as<char>() + static_cast<size_t>(row[i]) * bytes,
                    x.as<const char>() + static_cast<size_t>(i) * bytes, bytes);
    });
  }
};

NPU_ONNX_KERNEL(Microsoft({
    .type = RemovePaddingKernel::kOp,
    .inputs = {Input("input", kTypes), HostInput("sequence_token_count", kInt32)},
    .outputs = {Output("output", kTypes), Output("token_offset", kInt32), Output("cumulated_seq_len", kInt32),
                Output("max_seq_len", kInt32)},
    .make = MakeKernel<RemovePaddingKernel>,
}));
NPU_ONNX_KERNEL(Microsoft({
    .type = RestorePaddingKernel::kOp,
    .inputs = {Input("input", kTypes), Input("token_offset", kInt32)},
    .outputs = {Output("output", kTypes)},
    .make = MakeKernel<RestorePaddingKernel>,
}));

}  // namespace
}  // namespace npu
