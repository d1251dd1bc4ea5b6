// npu_random_choice_with_mask(x; count, seed, seed2) -> index, mask. The semantics are in
// npu_random_choice_with_mask.py.
#include "contrib_ops/random/npu_random_choice_with_mask.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/runtime/kernel_api.h"
#include "ep/runtime/philox.h"
#include "ep/runtime/random.h"

namespace npu {
namespace {

using In = nodes::NPURandomChoiceWithMask::In;
using Out = nodes::NPURandomChoiceWithMask::Out;

constexpr const char* kOp = "npu_random_choice_with_mask";
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// The first `count` of the places in random order.
void Shuffle(const Philox& generator, int64_t count, std::vector<int64_t>& places) {
  uint32_t words[4];
  const auto size = static_cast<int64_t>(places.size());
  for (int64_t k = 0; k < count; ++k) {
    if (k % 4 == 0) generator.Fill(static_cast<uint64_t>(k / 4), 1, words);
    const int64_t other = k + static_cast<int64_t>(words[k % 4]) % (size - k);
    std::swap(places[static_cast<size_t>(k)], places[static_cast<size_t>(other)]);
  }
}

class RandomChoiceWithMaskKernel final : public Kernel {
 public:
  explicit RandomChoiceWithMaskKernel(const KernelInfo& info)
      : count_(info.attributes.Int("count")),
        seed_(static_cast<uint64_t>(info.attributes.Int("seed"))),
        offset_(static_cast<uint64_t>(info.attributes.Int("seed2"))) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x);
    const int rank = x.shape.rank();
    NPU_OP_CHECK(kOp, x && rank >= 1 && rank <= 5, "expected x of 1 to 5 axes, got ", x.shape);
    NPU_OP_CHECK(kOp, count_ > 0 && count_ <= kMost, "expected count from 1 to ", kMost, ", got ", count_);
    const TensorView index = OutputOrRoom(ctx, Out::index, DType::kInt32, {count_, rank});
    const TensorView mask = OutputOrRoom(ctx, Out::mask, DType::kBool, {count_});
    const DrawnSeed seed = seed_ != 0 || offset_ != 0 ? seed_ : DrawSeed(ctx.stream());
    ctx.Launch(kOp, [=, offset = offset_] {
      std::memset(index.data, 0, index.bytes());
      std::memset(mask.data, 0, mask.bytes());
      std::vector<int64_t> places;
      for (int64_t i = 0; i < x.elements(); ++i)
        if (x.as<const uint8_t>()[i] != 0) places.push_back(i);
      const int64_t found = std::min(mask.shape[0], static_cast<int64_t>(places.size()));
      Shuffle(Philox{seed.Now(), offset}, found, places);
      for (int64_t k = 0; k < found; ++k) {
        mask.as<uint8_t>()[k] = 1;
        int64_t place = places[static_cast<size_t>(k)];
        for (int axis = rank - 1; axis >= 0; place /= x.shape[axis--])
          index.as<int32_t>()[k * rank + axis] = static_cast<int32_t>(place % x.shape[axis]);
      }
    });
  }

 private:
  int64_t count_;
  uint64_t seed_, offset_;
};

NPU_KERNEL(NPURandomChoiceWithMask, RandomChoiceWithMaskKernel);

}  // namespace
}  // namespace npu
