// float32_matmul_precision=medium: queries, keys and values of float32 are rounded to bfloat16 before they are
// multiplied, where the machine multiplies that faster and there are enough queries to pay for it.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "ep/kernels/attention/core/attention.h"
#include "ep/kernels/attention/core/launch.h"

namespace npu::attention {

class Bfloat16Operands {
 public:
  // Lets `p`, whose rows are strided, read rounded copies in a workspace; nothing where float32 stays. `products`:
  // KernelInfo::float32_products.
  static std::optional<Bfloat16Operands> Replace(OpContext& ctx, DType products, Problem& p);

  // Rounds. Called inside the launch, before the attention.
  void Run() const;

 private:
  // [sequence][head][row][size], with room for the most rows of a sequence.
  struct Copy {
    const float* from = nullptr;
    BFloat16* to = nullptr;
    int64_t heads = 0, size = 0, most_rows = 0;
    int64_t head_stride = 0, row_stride = 0;
    struct Source {
      int64_t offset, rows;
    };
    std::vector<Source> sequences;

    void Run() const;
  };

  // `first` and `count` are a sequence's offset and number of rows.
  static Copy ReplaceRows(OpContext& ctx, Problem& p, Rows& rows, int64_t heads, int64_t size,
                          int64_t Sequence::* first, int64_t Sequence::* count);

  Copy query_, key_, value_;
};

// Launches `before()` and then `p`, whose operands are rounded if `products` asks for it.
template <class Before>
void LaunchRounded(OpContext& ctx, DType products, Problem p, Before before) {
  auto operands = Bfloat16Operands::Replace(ctx, products, p);
  const char* op = p.op;
  LaunchWork(ctx, op, Attention(std::move(p)), [before = std::move(before), operands = std::move(operands)] {
    before();
    if (operands) operands->Run();
  });
}

}  // namespace npu::attention
