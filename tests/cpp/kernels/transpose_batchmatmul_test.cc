// npu_transpose_batchmatmul with a constant weight: each matrix is packed, and the blocks of columns find their place.
#include <vector>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;

TEST_CASE("npu_transpose_batchmatmul gives the same bits with a constant weight") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    for (const bool transposed : {false, true})
      for (const int64_t factor : {1, 2, 4, 3})  // 3 splits matrices, which are then not packed
        for (const int64_t m : {1, 40}) {
          const int64_t batch = 4, k = 70, n = 36;
          const HostTensor x = HostTensor::Random(dtype, {m, batch, k}, 1);
          const HostTensor weight =
              transposed ? HostTensor::Random(dtype, {batch, n, k}, 2) : HostTensor::Random(dtype, {batch, k, n}, 2);
          RunOptions options;
          options.attributes["batch_split_factor"] = factor;
          options.attributes["perm_x1"] = std::vector<int64_t>{1, 0, 2};
          if (transposed) options.attributes["perm_x2"] = std::vector<int64_t>{0, 2, 1};
          const HostTensor plain = RunOp("npu::NPUTransposeBatchMatMul", {x, weight}, options)[0];
          options.prepack = {1};
          const HostTensor packed = RunOp("npu::NPUTransposeBatchMatMul", {x, weight}, options)[0];
          CHECK(plain.shape() == packed.shape());
          CHECK(plain.values() == packed.values());
        }
}

}  // namespace
