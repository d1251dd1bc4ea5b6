#include "ep/kernels/movement/mapped_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/movement/copy.h"
#include "ep/runtime/strided_copy.h"

namespace npu {
namespace {

bool IsIdentity(const AxisMap& map, int64_t input_dim) {
  if (static_cast<int64_t>(map.size()) != input_dim) return false;
  for (int64_t i = 0; i < input_dim; ++i) {
    if (map[i] != i) return false;
  }
  return true;
}

// A part of an output row: `count` blocks from consecutive input blocks, or of the fill value.
struct Run {
  int64_t to, from, count;
};

std::vector<Run> RunsOf(const AxisMap& map) {
  std::vector<Run> runs;
  for (int64_t i = 0; i < static_cast<int64_t>(map.size()); ++i) {
    const bool continues =
        !runs.empty() &&
        (map[i] < 0 ? runs.back().from < 0 : runs.back().from >= 0 && map[i] == runs.back().from + runs.back().count);
    if (continues) {
      ++runs.back().count;
    } else {
      runs.push_back({i, map[i], 1});
    }
  }
  return runs;
}

constexpr int64_t kShortRun = 4;  // elements, of which a call of memcpy takes longer than single copies

// The shapes, after merging the trailing axes that map to themselves into one block of elements.
struct MappedCopy {
  int rank = 0;                                    // outer axes, before the row axis
  int64_t rows = 1, block = 1;                     // elements of a block
  int64_t row_blocks = 1;                          // of the output, along the row axis
  std::array<int64_t, Shape::kMaxRank> strides{};  // of the input, per outer axis, in elements
  std::vector<AxisMap> maps;                       // of the outer axes
  std::vector<Run> runs;                           // of the row axis
  AxisMap elements;                                // of the row axis, where its runs are short

  // The input offset of an output row, or -1 if the row is filled.
  int64_t RowOffset(int64_t row) const {
    int64_t offset = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const auto dim = static_cast<int64_t>(maps[d].size());
      const int64_t from = maps[d][row % dim];
      if (from < 0) return -1;
      offset += from * strides[d];
      row /= dim;
    }
    return offset;
  }
};

template <class T>
void CopyMappedRows(const MappedCopy& copy, const T* x, T* y, T fill) {
  const int64_t row_elements = copy.row_blocks * copy.block;
  const int64_t grain = std::max<int64_t>(1, kCopyGrain / (row_elements * static_cast<int64_t>(sizeof(T))));
  ParallelFor(copy.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* to = y + row * row_elements;
      const int64_t offset = copy.RowOffset(row);
      if (offset < 0) {
        std::fill(to, to + row_elements, fill);
        continue;
      }
      if (!copy.elements.empty()) {
        const int64_t* const from = copy.elements.data();
        for (int64_t i = 0; i < row_elements; ++i) to[i] = x[offset + from[i]];
        continue;
      }
      for (const Run& run : copy.runs) {
        T* at = to + run.to * copy.block;
        if (run.from < 0) {
          std::fill(at, at + run.count * copy.block, fill);
        } else if (run.count * copy.block == 1) {
          *at = x[offset + run.from];
        } else {
          std::memcpy(at, x + offset + run.from * copy.block, static_cast<size_t>(run.count * copy.block) * sizeof(T));
        }
      }
    }
  });
}

}  // namespace

void LaunchMappedCopy(OpContext& ctx, const char* op, const TensorView& x, const TensorView& y,
                      std::vector<AxisMap> maps, const void* fill) {
  if (y.elements() == 0) return;
  int row_axis = x.shape.rank() - 1;
  MappedCopy copy;
  while (row_axis >= 0 && IsIdentity(maps[row_axis], x.shape[row_axis])) copy.block *= x.shape[row_axis--];
  if (row_axis >= 0) {
    copy.runs = RunsOf(maps[row_axis]);
    copy.row_blocks = y.shape[row_axis];
    const bool filled =
        std::any_of(maps[row_axis].begin(), maps[row_axis].end(), [](int64_t from) { return from < 0; });
    const bool are_short = static_cast<int64_t>(copy.runs.size()) * kShortRun > copy.row_blocks;
    if (copy.block == 1 && !filled && are_short) copy.elements = maps[row_axis];
    copy.rank = row_axis;
    copy.strides = DenseStrides(x.shape);
    for (int d = 0; d < row_axis; ++d) copy.rows *= y.shape[d];
    maps.resize(row_axis);
    copy.maps = std::move(maps);
  } else {
    copy.runs = {{0, 0, 1}};
  }
  DispatchSize(BitsOf(x.dtype) / 8, [&](auto type) {
    using T = decltype(type);
    ctx.Launch(op, [copy = std::move(copy), px = x.as<const T>(), py = y.as<T>(), pf = static_cast<const T*>(fill)] {
      CopyMappedRows(copy, px, py, pf == nullptr ? T{0} : *pf);
    });
  });
}

}  // namespace npu
