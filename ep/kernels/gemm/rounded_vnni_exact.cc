// Blocks of rows of A as unsigned bytes times a panel of stored integers, by VPDPBUSD. A chunk of a panel is unpacked
// into the L1 cache for all rows of a block, which are multiplied six at a time: their sums and their totals stay in
// registers from group to group. Floats are rounded as in rounded_dot_exact.cc, to the same bits.
#include <algorithm>

#include "ep/kernels/gemm/dot_products.h"
#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/unpacked_quads.h"
#include "ep/runtime/isa.h"

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

// Fewer rows unpack a panel while they are multiplied: 8 by groups of 32, and more the less there is to scale.
int64_t FewestRows(int64_t group) { return std::clamp<int64_t>(group / 4, 8, 32); }
constexpr int64_t kBlockRows = 6;     // 12 sums and 12 totals of 32 registers
constexpr int64_t kChunkQuads = 128;  // a third of the L1 cache, or one longer group

int64_t PartsOf(int64_t rows) { return (rows - 1) / kBlockRows + 1; }

// Bits behind the point of integers of 4 bits: with them a byte holds the sum of such an integer and an offset that is
// a multiple of 1/8 near 0, as zero points are and the offsets of quantize_weights.
template <int bits>
constexpr int kFraction = bits == 4 ? 3 : 0;
// Sums of longer groups are not exact in float32.
constexpr int64_t kLongestExactGroup = 1024;

// What the columns of a group have for all rows, in the order of unpacked quads.
struct GroupColumns {
  __m512i begin[2];  // of sums: what is added to A, multiplied
  __m512 scale[2], offset[2];

  // For integers with `fraction` bits behind the point.
  void Load(const PanelScales& scales, int64_t g, int fraction) {
    const __m512 parts = _mm512_set1_ps(static_cast<float>(1 << fraction));
    const Columns of_scale = Columns::Unpacked(scales.scale + g * scales.stride);
    scale[0] = of_scale.first / parts, scale[1] = of_scale.second / parts;
    const Columns of_offset = scales.offset ? Columns::Unpacked(scales.offset + g * scales.stride) : Columns{};
    offset[0] = of_offset.first * parts, offset[1] = of_offset.second * parts;
  }
  // True where a byte can hold any 4-bit integer with any of the offsets.
  bool OffsetsFitBytes() const { return FitsBytes(offset[0]) && FitsBytes(offset[1]); }
  AddedBytes OffsetBytes() const {
    return AddedBytes::Of(_mm512_cvtps_epi32(offset[0]), _mm512_cvtps_epi32(offset[1]));
  }

 private:
  static bool FitsBytes(__m512 x) {
    constexpr float kLeast = -128 - (-8 << kFraction<4>), kMost = 127 - (7 << kFraction<4>);
    const __m512 near = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(kLeast)), _mm512_set1_ps(kMost));
    return _mm512_cmp_ps_mask(_mm512_roundscale_ps(near, 0), x, _CMP_EQ_OQ) == 0xffff;
  }
};

// Groups of a panel.
struct Chunk {
  const int8_t* quads;
  const GroupColumns* columns;
  int64_t groups, group_quads, last_quads;  // the last group may be shorter
  bool begins, ends;                        // the panel
  int64_t next_lines;  // of the chunk that follows, also in the next panel: prefetched with each part of the rows

  int64_t QuadsOf(int64_t g) const { return g + 1 == groups ? last_quads : group_quads; }
};

// Unpacks a group, and sets what its sums begin with.
template <int bits>
void UnpackGroup(const uint8_t* stored, int64_t count, int8_t* quads, const AddedBytes& added, GroupColumns& columns) {
  const __m512i added_to_a = _mm512_set1_epi8(static_cast<char>(kUnsignedRows.shift));
  __m512i first = _mm512_setzero_si512(), second = first;
  UnpackQuads<bits, kFraction<bits>>(stored, count, quads, added, [&](__m512i first_columns, __m512i second_columns) {
    AddDotOfBytes(first, added_to_a, first_columns);
    AddDotOfBytes(second, added_to_a, second_columns);
  });
  columns.begin[0] = _mm512_sub_epi32(_mm512_setzero_si512(), first);
  columns.begin[1] = _mm512_sub_epi32(_mm512_setzero_si512(), second);
}

// Multiplies kRows rows from row `row` of a sliver on; group `g` is the chunk's first. `tile`: their results. What is
// prefetched from `next` on is spread over the groups: more lines at once than the processor waits for would stall it.
template <int kRows, bool kOffset>
__attribute__((noinline)) void MultiplyRows(const Chunk& chunk, const RoundedRows& a, int64_t row, int64_t g,
                                            const uint8_t* next, float* tile) {
  __m512 total[kRows][2];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    total[r][0] = chunk.begins ? _mm512_setzero_ps() : _mm512_load_ps(tile + r * kPanelColumns);
    total[r][1] = chunk.begins ? _mm512_setzero_ps() : _mm512_load_ps(tile + r * kPanelColumns + 16);
  }
  const int8_t* b = chunk.quads;
  const int8_t* x = a.values + (g * chunk.group_quads * a.rows + row) * 4;
  const float* scales = a.scales + g * a.stride + row;
  const int32_t* row_sums = a.sums + g * a.stride + row;
  const uint8_t* const next_end = next + chunk.next_lines * 64;
  const int64_t next_step = (chunk.next_lines - 1) / chunk.groups + 1;
  for (int64_t i = 0; i < chunk.groups; ++i, scales += a.stride, row_sums += a.stride) {
    for (int64_t j = next_step; j > 0 && next < next_end; --j, next += 64) __builtin_prefetch(next, 0, 2);
    const GroupColumns& columns = chunk.columns[i];
    __m512i sum[kRows][2];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) sum[r][0] = columns.begin[0], sum[r][1] = columns.begin[1];
    for (int64_t q = chunk.QuadsOf(i); q > 0; --q, b += kUnpackedQuadBytes, x += 4 * a.rows) {
      const __m512i first = _mm512_load_si512(b), second = _mm512_load_si512(b + 64);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        int32_t quad;
        __builtin_memcpy(&quad, x + 4 * r, sizeof(quad));
        const __m512i of_row = _mm512_set1_epi32(quad);
        AddDotOfBytes(sum[r][0], of_row, first);
        AddDotOfBytes(sum[r][1], of_row, second);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 row_scale = _mm512_set1_ps(scales[r]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        __m512 whole = _mm512_cvtepi32_ps(sum[r][half]);
        if constexpr (kOffset) {
          const __m512 row_sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(row_sums[r]));
          whole = _mm512_fmadd_ps(columns.offset[half], row_sum, whole);
        }
        total[r][half] = _mm512_fmadd_ps(whole, columns.scale[half] * row_scale, total[r][half]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    float* const to = tile + r * kPanelColumns;
    _mm512_store_ps(to, total[r][0]);
    _mm512_store_ps(to + 16, total[r][1]);
    if (chunk.ends) Columns::PutInOrder(to);
  }
}

template <bool kOffset>
void MultiplySliver(const Chunk& chunk, const RoundedRows& a, int64_t g, const uint8_t*& next, float* tile) {
  static constexpr decltype(&MultiplyRows<1, kOffset>) kFunctions[kBlockRows] = {
      &MultiplyRows<1, kOffset>, &MultiplyRows<2, kOffset>, &MultiplyRows<3, kOffset>,
      &MultiplyRows<4, kOffset>, &MultiplyRows<5, kOffset>, &MultiplyRows<6, kOffset>};
  // In parts of about the same size: one or two rows alone wait for their own sums.
  const int64_t parts = PartsOf(a.rows);
  for (int64_t part = 0, row = 0; part < parts; ++part) {
    const int64_t rows = (a.rows - row - 1) / (parts - part) + 1;
    kFunctions[rows - 1](chunk, a, row, g, next, tile + row * kPanelColumns);
    next += chunk.next_lines * 64;
    row += rows;
  }
}

template <int bits>
void MultiplyBlock(const RowRounding& block, const uint8_t* stored, const PanelScales& scales, AlignedBuffer& memory,
                   float* tiles) {
  const RoundedRows first = block.Sliver(0);
  const int64_t depth_quads = (first.depth + 3) / 4, group_quads = std::min(first.group / 4, depth_quads);
  const int64_t fitting = std::max<int64_t>(1, kChunkQuads / group_quads);
  // Chunks of about the same size: each loads and stores the totals.
  const int64_t most_groups = (first.groups - 1) / ((first.groups - 1) / fitting + 1) + 1;
  int64_t parts = 0;
  for (int64_t s = 0; s < block.slivers(); ++s) parts += PartsOf(block.Sliver(s).rows);
  const int64_t quad_bytes = most_groups * group_quads * kUnpackedQuadBytes;
  auto* const quads =
      static_cast<int8_t*>(memory.Reserve(quad_bytes + most_groups * static_cast<int64_t>(sizeof(GroupColumns))));
  auto* const columns = reinterpret_cast<GroupColumns*>(quads + quad_bytes);
  for (int64_t g0 = 0; g0 < first.groups; g0 += most_groups) {
    const int64_t groups = std::min(most_groups, first.groups - g0), begin = g0 * group_quads;
    const int64_t chunk_quads = std::min(depth_quads - begin, groups * group_quads);
    const int64_t last_quads = chunk_quads - (groups - 1) * group_quads;
    const Chunk chunk{quads,
                      columns,
                      groups,
                      group_quads,
                      last_quads,
                      /*begins=*/g0 == 0,
                      /*ends=*/g0 + groups == first.groups,
                      (chunk_quads * kQuadBytes<bits> / 64 - 1) / parts + 1};
    // Such offsets are added to the integers once, instead of multiplied with the sums of each row.
    bool adds_offsets = bits == 4 && scales.offset && first.group <= kLongestExactGroup;
    for (int64_t g = 0; g < groups; ++g) {
      columns[g].Load(scales, g0 + g, kFraction<bits>);
      adds_offsets = adds_offsets && columns[g].OffsetsFitBytes();
    }
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = g * group_quads;
      const AddedBytes added = adds_offsets ? columns[g].OffsetBytes() : AddedBytes::None();
      UnpackGroup<bits>(stored + (begin + at) * kQuadBytes<bits>, chunk.QuadsOf(g), quads + at * kUnpackedQuadBytes,
                        added, columns[g]);
    }
    const auto multiply = scales.offset && !adds_offsets ? &MultiplySliver<true> : &MultiplySliver<false>;
    const uint8_t* next = stored + (begin + chunk_quads) * kQuadBytes<bits>;
    for (int64_t s = 0; s < block.slivers(); ++s)
      multiply(chunk, block.Sliver(s), g0, next, tiles + s * kUnsignedRows.rows * kPanelColumns);
  }
}

}  // namespace

RoundedBlock VnniRoundedBlock(int bits, int64_t rows, int64_t group) {
  constexpr int64_t kLongestGroup = 1 << 18;  // of 4-bit integers with fractions, whose sums have 32 bits
  if (!Features().avx512_vnni || rows < FewestRows(group) || group > kLongestGroup) return {};
  return {bits == 8 ? &MultiplyBlock<8> : &MultiplyBlock<4>, kUnsignedRows};
}

#else

RoundedBlock VnniRoundedBlock(int, int64_t, int64_t) { return {}; }

#endif

}  // namespace npu::gemm
