// Stores whole rows of a tile to C with vectors. With tile registers that is inlined into the micro-kernel that
// multiplies the next tile: the vector unit is idle while they multiply, and calling StoreTile for some rows takes
// longer than the rows.
//
// The bits are those of StoreTile: every operation is rounded by itself. So StoreRow is called only in sources that are
// compiled without contraction (*_exact.cc).
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/epilogue.h"
#include "ep/kernels/gemm/gate.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::gemm {

// Rows whose sums only have to be rounded to bfloat16, which most products are, or after a bias or residual of bfloat16
// was added: a few instructions each, so that the processor looks ahead to the tiles of the next steps.
class Bfloat16Rows {
 public:
  Bfloat16Rows(const Tile& tile, const Result& c, const Addend& addend, bool past_caches)
      : sums_(tile.sums),
        to_(static_cast<uint16_t*>(c.data) + tile.m0 * c.row_stride + tile.n0),
        stride_(c.row_stride),
        left_(tile.rows),
        past_caches_(past_caches) {
    if (!addend.data) return;
    addend_ = static_cast<const uint16_t*>(addend.data) + tile.m0 * addend.row_stride + tile.n0;
    addend_stride_ = addend.row_stride;
  }
  int64_t left() const { return left_; }
  // Takes the rows that were stored off the tile.
  void LeaveRest(Tile& tile) const {
    tile.m0 += tile.rows - left_;
    tile.sums += (tile.rows - left_) * kPanelColumns;
    tile.rows = left_;
  }
#if defined(__AVX512F__)
  __attribute__((target("avx512bf16"), always_inline)) void Store(int rows) {
    for (; rows > 0 && left_ > 0; --rows, --left_, sums_ += kPanelColumns, to_ += stride_) {
      __m512 low = _mm512_load_ps(sums_), high = _mm512_load_ps(sums_ + kLanes);
      if (addend_) {
        low = _mm512_add_ps(low, Widened(addend_));
        high = _mm512_add_ps(high, Widened(addend_ + kLanes));
        addend_ += addend_stride_;
      }
      const __m512i line = (__m512i)_mm512_cvtne2ps_pbh(high, low);
      if (past_caches_) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to_), line);
      } else {
        _mm512_storeu_si512(to_, line);
      }
    }
  }
  static __attribute__((target("avx512bf16"), always_inline)) __m512 Widened(const uint16_t* from) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
#endif

 private:
  const float* sums_;
  uint16_t* to_;
  int64_t stride_, left_;
  const uint16_t* addend_ = nullptr;
  int64_t addend_stride_ = 0;
  bool past_caches_;
};

class RowEpilogue {
 public:
  // Of a C of `elements` elements, or 0 if it is stored through the caches whatever its size; `integers` is null for
  // float sums. Refers to all of them.
  RowEpilogue(const Result& c, int64_t elements, const Epilogue& epilogue, const StoredIntegers* integers);

  // Whether StoreRow serves a tile; otherwise StoreTile does.
  bool Takes(const Tile& tile) const {
    if (epilogue_.gated_columns > 0) return serves_ && tile.n0 / 2 + kLanes <= epilogue_.gated_columns;
    return serves_ && tile.columns == kPanelColumns;
  }
  // Whether Rounded serves a tile.
  bool Rounds(const Tile& tile) const { return rounds_ && tile.columns == kPanelColumns; }
  Bfloat16Rows Rounded(const Tile& tile) const { return {tile, c_, epilogue_.addend, past_caches_}; }
  void StoreTile(const Tile& tile) const { gemm::StoreTile(tile, c_, epilogue_, integers_); }
  // By StoreRow where it serves the tile, so that each sum is loaded once, or by StoreTile.
  void Store(const Tile& tile) const;

  // Rows of a C that no cache holds are stored past the caches. Such stores take an sfence to be ordered.
  bool past_caches() const { return past_caches_; }

#if defined(__AVX512F__)
#define NPU_ROW_INLINE __attribute__((target("avx512bf16"), always_inline))

  // Stores the first row of the tile and removes it from the tile.
  NPU_ROW_INLINE void StoreRow(Tile& tile) const {
    if (epilogue_.gated_columns > 0) {
      GateRows(tile.sums, 1, rough_gate_, tile.sums);
      WriteHalf(_mm512_load_ps(tile.sums), tile.m0 * c_.row_stride + tile.n0 / 2);
    } else {
      StoreWholeRow(tile);
    }
    tile.sums += kPanelColumns;
    ++tile.m0;
    --tile.rows;
  }
#endif

 private:
#if defined(__AVX512F__)
  NPU_ROW_INLINE void StoreWholeRow(const Tile& tile) const {
    __m512 low = _mm512_load_ps(tile.sums), high = _mm512_load_ps(tile.sums + kLanes);
    if (integers_) {
      const __m512i exact_low = Corrected(_mm512_castps_si512(low), tile, 0);
      const __m512i exact_high = Corrected(_mm512_castps_si512(high), tile, kLanes);
      if (c_.dtype == DType::kInt32) {
        low = _mm512_castsi512_ps(exact_low);
        high = _mm512_castsi512_ps(exact_high);
      } else {
        low = _mm512_cvtepi32_ps(exact_low);
        high = _mm512_cvtepi32_ps(exact_high);
      }
    }
    if (computes_) {
      low = Computed(low, tile, 0);
      high = Computed(high, tile, kLanes);
    }
    Write(low, high, tile.m0 * c_.row_stride + tile.n0);
  }

  // The bias, and what the zero point of A and the shift of its elements add up to.
  NPU_ROW_INLINE __m512i Corrected(__m512i sums, const Tile& tile, int64_t lane) const {
    const IntegerTerms& terms = epilogue_.integers;
    if (terms.bias.data) sums = _mm512_add_epi32(sums, _mm512_loadu_si512(terms.bias.data + tile.n0 + lane));
    uint32_t each = static_cast<uint32_t>(integers_->a_shift);
    if (terms.a_zero_point.data)
      each += static_cast<uint32_t>(terms.a_zero_point.data[tile.m0 * terms.a_zero_point.stride]);
    if (each == 0) return sums;
    const __m512i column_sums = _mm512_loadu_si512(tile.column_sums + lane);
    return _mm512_sub_epi32(sums, _mm512_mullo_epi32(column_sums, _mm512_set1_epi32(static_cast<int>(each))));
  }

  NPU_ROW_INLINE __m512 Computed(__m512 sums, const Tile& tile, int64_t lane) const {
    sums = _mm512_mul_ps(sums, _mm512_set1_ps(epilogue_.alpha));
    if (const PerLine<float>& scale = epilogue_.column_scale; scale.data) {
      sums = _mm512_mul_ps(
          sums, scale.stride == 0 ? _mm512_set1_ps(*scale.data) : _mm512_loadu_ps(scale.data + tile.n0 + lane));
    }
    sums = TimesLine(sums, epilogue_.row_scale, tile.m0);
    if (epilogue_.addend.data) {
      const __m512 scale = _mm512_set1_ps(epilogue_.addend.scale);
      sums = _mm512_add_ps(sums, _mm512_mul_ps(scale, AddendAt(tile.m0, tile.n0 + lane)));
    }
    return TimesLine(sums, epilogue_.total_scale, tile.m0);
  }

  static NPU_ROW_INLINE __m512 TimesLine(__m512 sums, const PerLine<float>& rows, int64_t row) {
    return rows.data ? _mm512_mul_ps(sums, _mm512_set1_ps(rows.data[row * rows.stride])) : sums;
  }

  NPU_ROW_INLINE __m512 AddendAt(int64_t row, int64_t column) const {
    const Addend& addend = epilogue_.addend;
    const int64_t at = row * addend.row_stride + column;
    if (addend.dtype == DType::kFloat32) return _mm512_loadu_ps(static_cast<const float*>(addend.data) + at);
    const uint16_t* halves = static_cast<const uint16_t*>(addend.data) + at;
    if (addend.dtype == DType::kBFloat16) return Bfloat16Rows::Widened(halves);
    return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
  }

  NPU_ROW_INLINE void Write(__m512 low, __m512 high, int64_t at) const {
    if (c_.dtype == DType::kBFloat16) {
      WriteLine((__m512i)_mm512_cvtne2ps_pbh(high, low), static_cast<uint16_t*>(c_.data) + at);
    } else if (c_.dtype == DType::kFloat16) {
      constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
      const __m256i halves_low = _mm512_maskz_cvtps_ph(0xffff, low, kNearest);
      const __m256i halves_high = _mm512_maskz_cvtps_ph(0xffff, high, kNearest);
      WriteLine(_mm512_inserti64x4(_mm512_castsi256_si512(halves_low), halves_high, 1),
                static_cast<uint16_t*>(c_.data) + at);
    } else {
      WriteLine(_mm512_castps_si512(low), static_cast<float*>(c_.data) + at);
      WriteLine(_mm512_castps_si512(high), static_cast<float*>(c_.data) + at + kLanes);
    }
  }

  NPU_ROW_INLINE void WriteHalf(__m512 values, int64_t at) const {
    if (c_.dtype == DType::kFloat32) return _mm512_storeu_ps(static_cast<float*>(c_.data) + at, values);
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m256i halves = c_.dtype == DType::kBFloat16 ? (__m256i)_mm512_cvtneps_pbh(values)
                                                        : _mm512_maskz_cvtps_ph(0xffff, values, kNearest);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(c_.data) + at), halves);
  }

  NPU_ROW_INLINE void WriteLine(__m512i line, void* to) const {
    if (past_caches_) {
      _mm512_stream_si512(static_cast<__m512i*>(to), line);
    } else {
      _mm512_storeu_si512(to, line);
    }
  }
#undef NPU_ROW_INLINE
#endif

  const Result& c_;
  const Epilogue& epilogue_;
  const StoredIntegers* integers_;
  const bool serves_;    // this epilogue and type of result
  const bool computes_;  // more than a rounding
  const bool rounds_;    // to bfloat16, after no more than the addition of values of bfloat16
  const bool past_caches_;
  const bool rough_gate_ = BitsOf(c_.dtype) == 16;
};

}  // namespace npu::gemm
