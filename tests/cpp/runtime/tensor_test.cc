#include "ep/runtime/tensor.h"

#include <doctest/doctest.h>

#include <vector>

namespace npu {

TEST_CASE("a shape counts its elements and refuses overflow") {
  CHECK(Shape{}.Elements() == 1);
  CHECK(Shape{2, 3, 4}.Elements() == 24);
  CHECK(Shape{2, 3, 4}.Elements(1, 3) == 12);
  CHECK(Shape{2, 3, 4}.Elements(1, 1) == 1);
  CHECK(Shape{int64_t{1} << 62, 0, int64_t{1} << 62}.Elements() == 0);
  CHECK_THROWS_AS((Shape{int64_t{1} << 32, int64_t{1} << 31}.Elements()), Error);
  CHECK_THROWS_AS((Shape{2, -1}.Elements()), Error);
  CHECK_THROWS_AS((Shape{0, -1}.Elements()), Error);
  CHECK(Shape{2, 3}.ToString() == "[2, 3]");
}

TEST_CASE("a shape holds at most twelve dimensions") {
  Shape shape(std::vector<int64_t>(12, 1));
  CHECK_THROWS_AS(shape.push_back(1), Error);
  CHECK_THROWS_WITH(Shape(std::vector<int64_t>(13, 1)), "expected a tensor of rank <= 12, got rank 13");
}

TEST_CASE("axes are normalised within the rank") {
  CHECK(NormalizeAxis("Op", -1, 3) == 2);
  CHECK(NormalizeAxis("Op", 0, 3) == 0);
  CHECK_THROWS_WITH(NormalizeAxis("Op", 3, 3), "[Op] expected an axis in [-3, 2], got 3");
  CHECK_THROWS_AS(NormalizeAxis("Op", -4, 3), Error);
  CHECK_THROWS_AS(NormalizeAxis("Op", 0, 0), Error);
}

TEST_CASE("shapes broadcast as in NumPy") {
  CHECK(BroadcastShapes("Op", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(BroadcastShapes("Op", {}, {5}) == Shape{5});
  CHECK(BroadcastShapes("Op", {1}, {0}) == Shape{0});
  CHECK(BroadcastShapes("Op", {4, 0}, {1}) == Shape{4, 0});
  CHECK_THROWS_WITH(BroadcastShapes("Op", {2, 3}, {4}), "[Op] expected broadcastable shapes, got [2, 3] and [4]");
  CHECK_THROWS_AS(BroadcastShapes("Op", {0}, {3}), Error);
}

}  // namespace npu
