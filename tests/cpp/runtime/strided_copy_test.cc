// Copies between random layouts against coordinate arithmetic, on rows and on tiles. Through operators:
// tests/cpp/kernels/movement_test.cc; through views of torch: tests/torch/test_copies.py.
#include "ep/runtime/strided_copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cpp/support/test_device.h"

namespace npu::test {
namespace {

using Ints = std::vector<int64_t>;

// One side of a copy: a view into a buffer that it does not fill.
struct Side {
  Ints strides;
  int64_t first = 0, elements = 1;  // of the buffer
};

class Layouts {
 public:
  explicit Layouts(uint64_t seed) : generator_(seed) {}
  int64_t Draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }
  // A view of these dimensions, which lie in any order, with gaps between, forwards or backwards.
  Side SideOf(const Ints& dims, bool gaps, bool backwards) {
    Ints order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator_);
    Side side{Ints(dims.size()), 0, 1};
    for (const int64_t d : order) {
      const int64_t step = gaps ? Draw(1, 3) : 1;
      side.strides[d] = side.elements * step;
      side.elements *= dims[d] * step;
    }
    for (size_t d = 0; backwards && d < dims.size(); ++d) {
      if (Draw(0, 1) == 0) continue;
      side.first += (dims[d] - 1) * side.strides[d];
      side.strides[d] = -side.strides[d];
    }
    return side;
  }

 private:
  std::mt19937_64 generator_;
};

// Copies, and counts the bytes of the target's buffer that are not what they should be.
int64_t WrongBytes(const Ints& dims, const Side& to, const Side& from, int64_t size) {
  TestDevice device;
  std::vector<unsigned char> source(static_cast<size_t>(from.elements * size)), target(to.elements * size, 0xCD);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7);
  std::vector<unsigned char> expected = target;
  int64_t elements = 1;
  for (const int64_t dim : dims) elements *= dim;
  for (int64_t i = 0; i < elements; ++i) {
    int64_t at_to = to.first, at_from = from.first, rest = i;
    for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) {
      at_to += rest % dims[d] * to.strides[d];
      at_from += rest % dims[d] * from.strides[d];
    }
    std::memcpy(&expected[at_to * size], &source[at_from * size], size);
  }
  LaunchStridedCopy(device.stream(), "copy", MakeStridedPair(dims, to.strides, from.strides), size,
                    target.data() + to.first * size, source.data() + from.first * size);
  device.stream().Synchronize();
  int64_t wrong = 0;
  for (size_t i = 0; i < target.size(); ++i) wrong += target[i] != expected[i];
  return wrong;
}

TEST_CASE("strided copy: between any two layouts") {
  Layouts layouts(7);
  for (int round = 0; round < 150; ++round) {
    const int64_t size = int64_t{1} << (round % 5);
    Ints dims;
    const int64_t rank = layouts.Draw(1, 4);
    for (int64_t d = 0; d < rank; ++d) dims.push_back(layouts.Draw(1, rank > 2 ? 12 : 150));
    const Side to = layouts.SideOf(dims, layouts.Draw(0, 1) == 1, false);
    const Side from = layouts.SideOf(dims, layouts.Draw(0, 1) == 1, layouts.Draw(0, 1) == 1);
    CAPTURE(round);
    CHECK(WrongBytes(dims, to, from, size) == 0);
  }
}

TEST_CASE("strided copy: transposes of whole tiles, of parts of tiles and around other dimensions") {
  for (const int64_t size : {1, 2, 4, 8, 16}) {
    CAPTURE(size);
    for (const Ints& matrix : {Ints{64, 128}, Ints{65, 70}, Ints{200, 64}, Ints{67, 5000}}) {
      const int64_t r = matrix[0], c = matrix[1], n = r * c;
      CAPTURE(r);
      CHECK(WrongBytes(matrix, {{c, 1}, 0, n}, {{1, r}, 0, n}, size) == 0);
      // Written down the columns, which is the same copy seen from the other side.
      CHECK(WrongBytes(matrix, {{1, r}, 0, n}, {{c, 1}, 0, n}, size) == 0);
      // Backwards along one of the two.
      CHECK(WrongBytes(matrix, {{c, 1}, 0, n}, {{1, -r}, (c - 1) * r, n}, size) == 0);
      // Another dimension between the two, and a repeated one before them.
      CHECK(WrongBytes({r, 3, c}, {{3 * c, c, 1}, 0, 3 * n}, {{1, r, 3 * r}, 0, 3 * n}, size) == 0);
      CHECK(WrongBytes({2, r, c}, {{n, c, 1}, 0, 2 * n}, {{0, 1, r}, 0, n}, size) == 0);
    }
  }
}

TEST_CASE("strided copy: nothing of an empty tensor, and one element of none") {
  constexpr int64_t kHuge = int64_t{1} << 62;
  CHECK(MakeStridedPair(Ints{kHuge, 0, kHuge}, Ints{0, kHuge, 1}, Ints{0, kHuge, 1}).elements == 0);
  CHECK(WrongBytes({}, {{}, 0, 1}, {{}, 0, 1}, 4) == 0);
  CHECK(WrongBytes({1, 1}, {{5, 9}, 0, 1}, {{7, 3}, 0, 1}, 4) == 0);
}

TEST_CASE("strided copy: what it cannot walk is refused") {
  const Ints twos(13, 2), ones(65, 1);
  Ints forwards(13), backwards(13);
  for (int d = 0; d < 13; ++d) {
    forwards[d] = int64_t{1} << d;
    backwards[d] = int64_t{1} << (12 - d);
  }
  CHECK_THROWS_WITH(MakeStridedPair(twos, forwards, backwards),
                    "[copy] expected a view of at most 12 dimensions that cannot be merged, got more");
  CHECK_THROWS_WITH(MakeStridedPair(ones, ones, ones), "[copy] expected a view of at most 64 dimensions, got 65");
  TestDevice device;
  const StridedPair pair = MakeStridedPair(Ints{2}, Ints{1}, Ints{1});
  CHECK_THROWS_WITH(LaunchStridedCopy(device.stream(), "copy", pair, 3, nullptr, nullptr),
                    "[copy] expected elements of 1, 2, 4, 8 or 16 bytes, got 3");
}

}  // namespace
}  // namespace npu::test
