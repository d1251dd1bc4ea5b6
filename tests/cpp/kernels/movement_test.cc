// Strided, mapped and indexed copies against coordinate arithmetic, over random shapes; AddressSanitizer checks that no
// access is out of bounds. Values over dtypes and hostile arguments: tests/kernels/test_movement.py and
// test_indexing.py.
#include <doctest/doctest.h>

#include <functional>
#include <random>
#include <string>

#include "tests/cpp/support/test_context.h"

namespace {

using namespace npu;
using namespace npu::test;

using Coordinates = std::vector<int64_t>;

int64_t Flat(const Shape& shape, const Coordinates& at) {
  int64_t i = 0;
  for (int d = 0; d < shape.rank(); ++d) i = i * shape[d] + at[d];
  return i;
}

Coordinates At(const Shape& shape, int64_t i) {
  Coordinates at(shape.rank());
  for (int d = shape.rank() - 1; d >= 0; --d) {
    at[d] = i % shape[d];
    i /= shape[d];
  }
  return at;
}

// Every element of `y` is the element of `x` at `source`, or `fill` if there is none.
void CheckElements(const HostTensor& y, const HostTensor& x,
                   const std::function<bool(const Coordinates&, Coordinates&)>& source, double fill = 0) {
  int wrong = 0;
  for (int64_t i = 0; i < y.elements(); ++i) {
    Coordinates from(x.shape().rank());
    const bool found = source(At(y.shape(), i), from);
    wrong += y[i] != (found ? x[Flat(x.shape(), from)] : fill);
  }
  CHECK(wrong == 0);
}

class Dice {
 public:
  int64_t operator()(int64_t low, int64_t high) {  // inclusive
    return std::uniform_int_distribution<int64_t>(low, high)(generator_);
  }
  Shape ShapeOf(int rank, int64_t largest) {
    Shape shape;
    for (int d = 0; d < rank; ++d) shape.push_back((*this)(1, largest));
    return shape;
  }
  HostTensor Tensor(DType dtype, const Shape& shape) { return HostTensor::Random(dtype, shape, ++seed_, -100, 100); }
  std::vector<int64_t> Permutation(int n) {
    std::vector<int64_t> p(n);
    for (int i = 0; i < n; ++i) p[i] = i;
    std::shuffle(p.begin(), p.end(), generator_);
    return p;
  }

 private:
  std::mt19937_64 generator_{42};
  uint64_t seed_ = 0;
};

HostTensor Ints(const std::vector<int64_t>& values) {
  return HostTensor::Of<int64_t>(Shape{static_cast<int64_t>(values.size())}, values);
}

constexpr DType kSizes[] = {DType::kInt8, DType::kFloat16, DType::kFloat32, DType::kFloat64};

TEST_CASE("movement: transposes of random shapes") {
  Dice dice;
  for (int round = 0; round < 60; ++round) {
    const int rank = static_cast<int>(dice(1, 5));
    const HostTensor x = dice.Tensor(kSizes[round % 4], dice.ShapeOf(rank, rank > 2 ? 9 : 70));
    const std::vector<int64_t> perm = dice.Permutation(rank);
    const HostTensor y = RunOp("Transpose", {x}, {.attributes = {{"perm", perm}}})[0];
    CheckElements(y, x, [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < rank; ++d) from[perm[d]] = to[d];
      return true;
    });
  }
}

TEST_CASE("movement: slices of random shapes, forwards and backwards") {
  Dice dice;
  for (int round = 0; round < 60; ++round) {
    const int rank = static_cast<int>(dice(1, 4));
    const HostTensor x = dice.Tensor(kSizes[round % 4], dice.ShapeOf(rank, 12));
    std::vector<int64_t> starts, ends, axes = dice.Permutation(rank), steps, first(rank);
    Coordinates step_of(rank);
    for (int64_t axis : axes) {
      starts.push_back(dice(-15, 15));
      ends.push_back(dice(-15, 15));
      steps.push_back(dice(0, 1) ? dice(1, 4) : dice(-4, -1));
      const int64_t n = x.shape()[axis], step = steps.back();
      int64_t start = starts.back() < 0 ? starts.back() + n : starts.back();
      first[axis] = std::clamp<int64_t>(start, 0, step > 0 ? n : n - 1);  // NumPy clamps to -1 backwards
      step_of[axis] = step;
    }
    const HostTensor y = RunOp("Slice", {x, Ints(starts), Ints(ends), Ints(axes), Ints(steps)})[0];
    CheckElements(y, x, [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < rank; ++d) from[d] = first[d] + to[d] * step_of[d];
      return true;
    });
  }
}

TEST_CASE("movement: pads and tiles of random shapes") {
  Dice dice;
  for (int round = 0; round < 60; ++round) {
    const int rank = static_cast<int>(dice(1, 4));
    const HostTensor x = dice.Tensor(kSizes[round % 4], dice.ShapeOf(rank, 6));
    std::vector<int64_t> pads(2 * rank), repeats(rank);
    for (int d = 0; d < rank; ++d) {
      pads[d] = dice(-1, 3);
      pads[rank + d] = dice(pads[d] < 0 && x.shape()[d] == 1 ? 0 : -(x.shape()[d] > 2), 3);
      repeats[d] = dice(1, 3);
    }
    const HostTensor value = HostTensor::From(x.dtype(), {}, {7});
    const HostTensor padded = RunOp("Pad", {x, Ints(pads), value})[0];
    const auto inside = [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < rank; ++d) {
        from[d] = to[d] - pads[d];
        if (from[d] < 0 || from[d] >= x.shape()[d]) return false;
      }
      return true;
    };
    CheckElements(padded, x, inside, 7);
    const HostTensor tiled = RunOp("Tile", {x, Ints(repeats)})[0];
    CheckElements(tiled, x, [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < rank; ++d) from[d] = to[d] % x.shape()[d];
      return true;
    });
  }
}

TEST_CASE("movement: expansions, and concatenations that split again") {
  Dice dice;
  for (int round = 0; round < 40; ++round) {
    const int rank = static_cast<int>(dice(1, 4));
    const Shape shape = dice.ShapeOf(rank, 6);
    Shape narrow = shape;
    for (int d = 0; d < rank; ++d)
      if (dice(0, 1)) narrow[d] = 1;
    const HostTensor x = dice.Tensor(kSizes[round % 4], narrow);
    const HostTensor y = RunOp("Expand", {x, Ints({shape.begin(), shape.end()})})[0];
    CheckElements(y, x, [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < rank; ++d) from[d] = narrow[d] == 1 ? 0 : to[d];
      return true;
    });

    const int64_t axis = dice(0, rank - 1);
    std::vector<HostTensor> parts;
    std::vector<int64_t> sizes;
    for (int k = 0; k < 3; ++k) {
      Shape part = shape;
      part[static_cast<int>(axis)] = dice(0, 5);
      sizes.push_back(part[static_cast<int>(axis)]);
      parts.push_back(dice.Tensor(kSizes[round % 4], part));
    }
    const HostTensor joined = RunOp("Concat", parts, {.attributes = {{"axis", axis}}})[0];
    const auto again = RunOp("Split", {joined, Ints(sizes)}, {.attributes = {{"axis", axis}}, .outputs = 3});
    for (int k = 0; k < 3; ++k) {
      CHECK(again[k].shape() == parts[k].shape());
      CHECK(again[k].values() == parts[k].values());
    }
  }
}

TEST_CASE("indexing: gathers of random shapes and indices") {
  Dice dice;
  for (int round = 0; round < 40; ++round) {
    const int rank = static_cast<int>(dice(1, 4));
    const HostTensor x = dice.Tensor(kSizes[round % 4], dice.ShapeOf(rank, 7));
    const int axis = static_cast<int>(dice(0, rank - 1));
    const int64_t n = x.shape()[axis];
    const HostTensor rows = dice.Tensor(DType::kInt64, dice.ShapeOf(2, 4));
    for (int64_t i = 0; i < rows.elements(); ++i) rows.data<int64_t>()[i] = dice(-n, n - 1);
    const HostTensor y = RunOp("Gather", {x, rows}, {.attributes = {{"axis", int64_t{axis}}}})[0];
    const auto wrap = [n](int64_t i) { return i < 0 ? i + n : i; };
    CheckElements(y, x, [&](const Coordinates& to, Coordinates& from) {
      for (int d = 0; d < axis; ++d) from[d] = to[d];
      from[axis] = wrap(rows.data<int64_t>()[Flat(rows.shape(), {to[axis], to[axis + 1]})]);
      for (int d = axis + 1; d < rank; ++d) from[d] = to[d + 1];
      return true;
    });

    Shape picks = x.shape();
    picks[axis] = dice(1, 9);
    const HostTensor indices = dice.Tensor(DType::kInt64, picks);
    for (int64_t i = 0; i < indices.elements(); ++i) indices.data<int64_t>()[i] = dice(-n, n - 1);
    const HostTensor z = RunOp("GatherElements", {x, indices}, {.attributes = {{"axis", int64_t{axis}}}})[0];
    CheckElements(z, x, [&](const Coordinates& to, Coordinates& from) {
      from = to;
      from[axis] = wrap(indices.data<int64_t>()[Flat(picks, to)]);
      return true;
    });
  }
}

TEST_CASE("indexing: a bad index writes nothing out of bounds, in place or not") {
  for (int64_t bad :
       {int64_t{5}, int64_t{-6}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    for (const char* op : {"ScatterND", "ScatterElements"}) {
      CAPTURE(op);
      const bool tuples = std::string(op) == "ScatterND";
      const HostTensor x = HostTensor::From(DType::kFloat32, {5}, {0, 1, 2, 3, 4});
      const HostTensor indices = HostTensor::Of<int64_t>(tuples ? Shape{2, 1} : Shape{2}, {1, bad});
      const HostTensor updates = HostTensor::From(DType::kFloat32, {2}, {10, 20});
      CHECK_THROWS_WITH_AS(RunOp(op, {x, indices, updates}, {.attributes = {}, .alias = {{0, 0}}}),
                           doctest::Contains("expected an index in [-5, 5)"), Error);
      CHECK(x[0] == 0);
      CHECK(x[4] == 4);
      const HostTensor good = HostTensor::Of<int64_t>(tuples ? Shape{2, 1} : Shape{2}, {1, -1});
      const HostTensor y = RunOp(op, {x, good, updates}, {.attributes = {}, .alias = {{0, 0}}})[0];
      CHECK(y.values() == std::vector<double>{0, 10, 2, 3, 20});
      CHECK(y.data<void>() == x.data<void>());
    }
  }
}

TEST_CASE("movement: views of a shared buffer copy nothing") {
  const HostTensor x = HostTensor::From(DType::kFloat32, {2, 3}, {1, 2, 3, 4, 5, 6});
  for (bool shared : {true, false}) {
    const RunOptions options{.attributes = {},
                             .alias = shared ? std::map<size_t, size_t>{{0, 0}} : std::map<size_t, size_t>{}};
    CHECK(RunOp("Reshape", {x, Ints({3, 2})}, options)[0].values() == x.values());
    CHECK(RunOp("Identity", {x}, options)[0].values() == x.values());
  }
}

TEST_CASE("movement: triangles in place") {
  const HostTensor x = HostTensor::From(DType::kFloat32, {2, 2}, {1, 2, 3, 4});
  const HostTensor y = RunOp("Trilu", {x}, {.attributes = {}, .alias = {{0, 0}}})[0];
  CHECK(y.values() == std::vector<double>{1, 2, 0, 4});
}

}  // namespace
