// The order of tile instructions on which the speed of products depends, as the emulator counts it: no machine with
// tile registers is needed to notice that it got lost, and one that has them counts, too. Decision 0020 gives the
// reasons for the numbers.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "ep/runtime/isa.h"
#include "tests/cpp/emulation/tile_counts.h"
#include "tests/cpp/support/emulated_tiles.h"
#include "tests/cpp/support/test_context.h"

namespace npu {
namespace {

using test::HostTensor;
using test::RunOptions;
using test::TestNode;

TileCounts TakeCounts() {
  void* const take = dlsym(RTLD_DEFAULT, "npu_take_tile_counts");
  REQUIRE(take != nullptr);
  return reinterpret_cast<decltype(&npu_take_tile_counts)>(take)();
}

// With a store every 16 steps of four products the unit that stores tiles never sleeps.
constexpr int64_t kAwakeProducts = 16 * 4;

// Of C = A · B with a constant B.
TileCounts CountsOf(const std::string& op, DType dtype, int64_t m, int64_t n, int64_t k) {
  const HostTensor a = HostTensor::Random(dtype, {m, k}, 1, -8, 8), b = HostTensor::Random(dtype, {k, n}, 2, -8, 8);
  TestNode node(op);
  REQUIRE(node.PrePack(1, b));
  TakeCounts();
  node.Run({a, b});
  return TakeCounts();
}

// Every row of C is in a sliver of 32 and every column in a panel of 32. `parts`: products that each one is made of.
void CheckRecipe(const std::string& op, DType dtype, int64_t m, int64_t n, int64_t k, int64_t parts = 1) {
  CAPTURE(op);
  CAPTURE(NameOf(dtype));
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const TileCounts counts = CountsOf(op, dtype, m, n, k);
  // A step multiplies 2 × 2 tiles.
  const int64_t steps = (m / 32) * (n / 32) * (k * BitsOf(dtype) / 8 / 64) * parts;
  CHECK(counts.products == 4 * steps);
  CHECK(counts.most_products_without_store <= kAwakeProducts);
  // A passes by the L1 cache, and B never does.
  CHECK(counts.hinted_loads == 2 * steps);
  CHECK(counts.loads >= 2 * steps);
  // Most loads of B find it in L1: the first of four slivers brings it there.
  CHECK(counts.loads_from_l1 * 10 >= 2 * steps * 7);
  // What else is loaded are sums, once or less for six steps.
  CHECK(counts.loads - 2 * steps <= 4 * (steps / 6));
  // No row of an operand lies in two lines.
  CHECK(counts.lines == 16 * (counts.loads + counts.hinted_loads));
}

TEST_CASE("child: products in tiles follow the recipe" * doctest::skip()) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckRecipe("MatMul", dtype, 128, 64, 576);  // one chunk of K
    CheckRecipe("MatMul", dtype, 128, 64, 608);  // the shortest K that takes two
    CheckRecipe("MatMul", dtype, 256, 32, 1184);
    CheckRecipe("MatMul", dtype, 256, 32, 4864);   // several blocks of K
    CheckRecipe("MatMul", dtype, 128, 1248, 320);  // each thread packs A
  }
  CheckRecipe("MatMulInteger", DType::kInt8, 128, 64, 2368);
}

TEST_CASE("child: float16 in parts follows the recipe" * doctest::skip()) {
  for (const int64_t k : {192, 608, 1184}) CheckRecipe("MatMul", DType::kFloat16, 128, 64, k, 3);
  CheckRecipe("MatMul", DType::kFloat16, 128, 1248, 320, 3);
}

// Sums of a group are exact and take all of its steps, however long it is. Of two slivers a group of B is unpacked
// once.
TEST_CASE("child: products of long groups of integers follow the recipe" * doctest::skip()) {
  constexpr int64_t kM = 64, kN = 64, kGroup = 1152, kGroups = 2, kK = kGroups * kGroup;
  const HostTensor x = HostTensor::Random(DType::kBFloat16, {kM, kK}, 1),
                   weight = HostTensor::Random(DType::kInt8, {kK, kN}, 2, -8, 8),
                   scale = HostTensor::Random(DType::kBFloat16, {kGroups, kN}, 3);
  TestNode node("npu::NPUWeightQuantBatchMatmulV2",
                {.attributes = {{"antiquant_group_size", kGroup}, {"inner_precise", int64_t{1}}}}, 7);
  REQUIRE(node.PrePack(1, weight));
  TakeCounts();
  node.Run({x, weight, scale, HostTensor(), HostTensor(), HostTensor(), HostTensor()});
  const TileCounts counts = TakeCounts();
  constexpr int64_t kSteps = kM / 32 * (kN / 32) * (kK / 64);
  CHECK(counts.products == 4 * kSteps);
  CHECK(counts.most_products_without_store <= kAwakeProducts);
  CHECK(counts.hinted_loads == 2 * kSteps);
  CHECK(counts.loads == 2 * kSteps);
  CHECK(counts.lines == 16 * 4 * kSteps);
  CHECK(counts.products_after_loads == kSteps);
}

TEST_CASE("child: few rows of a product in tiles load B once" * doctest::skip()) {
  for (const int64_t k : {576, 1184}) {
    CAPTURE(k);
    const TileCounts counts = CountsOf("MatMul", DType::kBFloat16, 32, 64, k);
    CHECK(counts.products == 4 * 2 * (k / 32));
    CHECK(counts.most_products_without_store <= kAwakeProducts);
    CHECK(counts.hinted_loads == counts.products / 2);
    CHECK(counts.loads == counts.products / 2);
    CHECK(counts.products_after_loads == counts.products / 4);
  }
}

// Nothing is packed to as many rows as a tile has, and no rows are read but those of A.
TEST_CASE("child: tiles have as many rows as a product of few" * doctest::skip()) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const int64_t m : {3, 8, 16, 20, 31}) {
      CAPTURE(m);
      constexpr int64_t kSteps = 64 / 32 * (576 / 32);
      const TileCounts counts = CountsOf("MatMul", dtype, m, 64, 576);
      CHECK(counts.products == (m > 16 ? 4 : 2) * kSteps);
      CHECK(counts.most_products_without_store <= kAwakeProducts);
      CHECK(counts.hinted_loads == (m > 16 ? 2 : 1) * kSteps);
      CHECK(counts.loads == 2 * kSteps);
      CHECK(counts.lines == kSteps * (m + 2 * 16));
    }
}

// The 32 rows of a tile are gated and stored with 16 steps of the next one, whose first has stored the sums; after the
// last one of each of two threads no products follow.
TEST_CASE("child: the gate of a product is computed beside its steps" * doctest::skip()) {
  const TileCounts counts = CountsOf("npu.fused::GatedMatMul", DType::kBFloat16, 128, 96, 576);
  constexpr int64_t kTiles = 128 / 32 * (96 / 32), kThreads = 2;
  CHECK(counts.products == 4 * kTiles * (576 / 32));
  CHECK(counts.most_products_without_store <= kAwakeProducts);
  CHECK(counts.products_after_vectors >= (kTiles - kThreads) * 15);
}

// The residual is added to the 32 rows of a tile, and the sum stored, with 16 steps of the next one.
TEST_CASE("child: the residual of a product is added beside its steps" * doctest::skip()) {
  constexpr int64_t kRows = 128, kColumns = 96, kTiles = kRows / 32 * (kColumns / 32), kThreads = 2;
  TestNode node("npu.fused::MatMulAddRmsNorm", {.outputs = 2});
  node.PrePack(1, HostTensor::Random(DType::kBFloat16, {576, kColumns}, 2));
  TakeCounts();
  node.Run({HostTensor::Random(DType::kBFloat16, {kRows, 576}, 1), HostTensor(),
            HostTensor::Random(DType::kBFloat16, {kRows, kColumns}, 3),
            HostTensor::Random(DType::kBFloat16, {kColumns}, 4)});
  const TileCounts counts = TakeCounts();
  CHECK(counts.products == 4 * kTiles * (576 / 32));
  CHECK(counts.most_products_without_store <= kAwakeProducts);
  CHECK(counts.products_after_vectors >= (kTiles - kThreads) * 15);
}

// 8 panels of 32 queries see two blocks of 128 keys. Scores take 4 × 2 steps of four products per panel and block, and
// the sums of values as many. All but the scores of a block's first keys and the sums of its last panel are computed
// beside exponentials. Keys and values, two loads of the four of a step, pass by the L1 cache.
TEST_CASE("child: products of attention are computed beside exponentials" * doctest::skip()) {
  const Shape shape{1, 1, 256, 64};
  TestNode node("Attention", {}, 3);
  std::vector<HostTensor> operands;
  for (unsigned seed : {1u, 2u, 3u}) operands.push_back(HostTensor::Random(DType::kBFloat16, shape, seed));
  TakeCounts();
  node.Run(operands);
  const TileCounts counts = TakeCounts();
  constexpr int64_t kBlocks = 2, kPanels = 8, kSteps = 2 * 8;
  CHECK(counts.products == 4 * kBlocks * kPanels * kSteps);
  CHECK(counts.most_products_without_store <= kAwakeProducts);
  CHECK(counts.products_after_vectors >= kBlocks * (kPanels - 1) * kSteps);
  CHECK(counts.hinted_loads == counts.products / 2);
}

TEST_CASE("tile instructions are in the order on which their speed depends") {
  if (!test::HasKernelsWithTiles()) return;
  const auto passes = [](const char* child, const std::map<std::string, std::string>& more = {}) {
    std::map<std::string, std::string> environment = more;
    environment.insert({"ORT_NPU_NUM_THREADS", "2"});
    const test::ChildResult result = test::RunWithTiles(child, environment);
    INFO(result.output);
    CHECK(result.exit_code == 0);
  };
  passes("child: products in tiles follow the recipe");
  passes("child: products of long groups of integers follow the recipe");
  passes("child: few rows of a product in tiles load B once");
  passes("child: tiles have as many rows as a product of few");
  if (!Features().avx512_bf16) return;  // what follows has kernels with tiles only beside it, as any machine with tiles
  passes("child: the gate of a product is computed beside its steps");
  passes("child: the residual of a product is added beside its steps");
  passes("child: products of attention are computed beside exponentials", {{"ORT_NPU_NUM_THREADS", "1"}});
  passes("child: float16 in parts follows the recipe", {{"NPU_TILE_EMULATOR_FLOAT16", "missing"}});
}

}  // namespace
}  // namespace npu
