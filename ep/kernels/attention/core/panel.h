// Computes an Item of many rows (prefill) with vector instructions: keys and values are only broadcast from row-major
// blocks, and the scores are exactly the operand that the second matmul reads.
//
// `Math` selects the arithmetic of the matmuls: a 32-bit word of the operands (one float, or a pair of bfloat16 along
// the summed axis) and the instruction that multiplies a broadcast word with a vector of them.
#pragma once

#include "ep/kernels/attention/core/panel_base.h"
#include "ep/kernels/attention/core/panel_block.h"

namespace npu::attention {

// Operands of any type, as floats.
struct FloatMath {
  using Element = float;
  static constexpr int kElements = 1;  // of one word
  static constexpr bool kTiles = false;
  NPU_SIMD_INLINE static void MultiplyAdd(Vec& sum, float a, Vec b) { sum += a * b; }
  NPU_SIMD_INLINE static Vec Weight(Vec x) { return Exp2(x); }
};

// Uses the largest tile that fits `n`, a multiple of 4; 16 is faster as 8 + 8 than as 12 + 4.
template <class F>
NPU_SIMD_INLINE void ForEachTile(int64_t begin, int64_t end, F&& f) {
  while (begin < end) {
    const int64_t n = end - begin;
    if (kTile == 12 && n >= 12 && n != 16) {
      f(std::integral_constant<int, kTile>{}, begin);
      begin += kTile;
    } else if (kTile == 12 && n >= 8) {
      f(std::integral_constant<int, kTile == 12 ? 8 : 4>{}, begin);
      begin += 8;
    } else {
      f(std::integral_constant<int, 4>{}, begin);
      begin += 4;
    }
  }
}

template <class Math, int kVectors>
class PanelItem : PanelBase<Math, kVectors> {
  using Base = PanelBase<Math, kVectors>;
  using Base::b_, Base::item_, Base::kWidth, Base::p_, Base::s_, Base::score_scale_;
  using typename Base::Part;

 public:
  PanelItem(const Problem& p, const Item& item, void* scratch) : Base(p, item, scratch) {}

  void Run(float* partials) {
    const int64_t panels = this->Panels();
    for (int64_t panel = 0; panel < panels; ++panel) this->Begin(panel);
    for (int64_t begin = item_.key_begin; begin < item_.key_end; begin += b_.key_block) {
      RunBlock(panels, begin, std::min(b_.key_block, item_.key_end - begin));
    }
    for (int64_t panel = 0; panel < panels; ++panel) this->End(panel, partials);
  }

 private:
  // A block that is masked for every panel is never read.
  void RunBlock(int64_t panels, int64_t begin, int64_t n) {
    Part part = this->NextPart(0, panels, begin, n);
    if (part.empty()) return;
    LoadPanelBlock(p_, s_, item_, begin, n, b_);
    for (; !part.empty(); part = this->NextPart(part.panel + 1, panels, begin, n)) Step(part, begin);
  }

  // Processes one panel against the block of keys.
  void Step(const Part& part, int64_t begin) {
    const int64_t panel = part.panel, from = part.from, to = part.to;
    const int32_t* first_key = b_.first_key + panel * kWidth;
    const int32_t* last_key = b_.last_key + panel * kWidth;
    const PanelKeys& seen = b_.seen[panel];
    const float* bias = this->BiasOf(part, begin);

    Vec max[kVectors];
    for (int v = 0; v < kVectors; ++v) max[v] = Broadcast(kNegativeInfinity);
    ForEachTile(from, RoundUp(to, 4), [&](auto size, int64_t key) NPU_SIMD_INLINE_LAMBDA {
      const bool edge = begin + key < seen.all_first || begin + key + size > seen.all_last;
      ScoreTile<size>(this->QueriesOf(panel), key, edge ? static_cast<int32_t>(begin + key) : -1, bias, first_key,
                      last_key, max);
    });
    const float* dropout = this->DropoutOf(part, begin, b_.bias);  // the bias is no longer needed
    Vec scale[kVectors];
    Normalise(part, max, dropout, scale);
    constexpr int kElements = Math::kElements;
    const float* values = b_.values + from / kElements * b_.value_stride;
    const float* probabilities = b_.scores + from / kElements * kWidth;
    float* sums = this->SumsOf(panel);
    const int64_t steps = (to + kElements - 1) / kElements - from / kElements;
    ForEachTile(0, RoundUp(p_.value_size, 4), [&](auto size, int64_t column) NPU_SIMD_INLINE_LAMBDA {
      ValueTile<size>(values + column, probabilities, steps, scale, sums + column * kWidth);
    });
  }

  // Stores the scores of kKeys keys from `key` on in the buffer, and updates their maximum. With `position` >= 0 (that
  // of the first key), some lane does not see all of them.
  template <int kKeys>
  NPU_SIMD_INLINE void ScoreTile(const float* queries, int64_t key, int32_t position, const float* bias,
                                 const int32_t* first_key, const int32_t* last_key, Vec (&max)[kVectors]) {
    const float* keys = b_.keys + key * b_.key_stride;
    const int64_t stride = b_.key_stride;
    const int64_t words = b_.words;
    Vec sum[kKeys][kVectors] = {};
    for (int64_t word = 0; word < words; ++word) {
      Vec q[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) q[v] = Load(queries + word * kWidth + v * kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        const float k = keys[j * stride + word];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) Math::MultiplyAdd(sum[j][v], k, q[v]);
      }
    }
    this->template FinishScores<kKeys>(b_.scores + key * kWidth, key, position, bias, first_key, last_key, max,
                                       [&](int j, int v) NPU_SIMD_INLINE_LAMBDA { return sum[j][v]; });
  }

  // Turns scores into weights relative to the new maximum; `scale` is the factor for earlier sums. `dropout` are the
  // factors of dropout, or null.
  void Normalise(const Part& part, const Vec (&block_max)[kVectors], const float* dropout, Vec (&scale)[kVectors]) {
    Vec reference[kVectors], sum[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* max_at = b_.max + part.panel * kWidth + v * kLanes;
      const Vec old_max = Load(max_at);
      const Vec max = Max(old_max, block_max[v]);
      // No key seen yet: any finite reference keeps -inf - reference from becoming NaN.
      reference[v] = max == kNegativeInfinity ? Vec{} : max;
      scale[v] = Exp2(old_max - reference[v]);
      sum[v] = Load(b_.sum + part.panel * kWidth + v * kLanes) * scale[v];
      Store(max_at, max);
    }
    if constexpr (Math::kElements == 1) {
      for (int v = 0; v < kVectors; ++v) {
        float* scores = b_.scores + v * kLanes;
        for (int64_t j = part.from; j < part.to; ++j) {
          const Vec weight = Math::Weight(Load(scores + j * kWidth) - reference[v]);
          sum[v] += weight;
          const Vec taken = Base::Dropped(weight, dropout, j, v);
          Store(scores + j * kWidth, weight_scale_ == 0.0f ? taken : QuantiseWeight(taken, weight_scale_));
        }
      }
    } else {
      constexpr int kGroup = 8;
      const auto weigh = [&](int64_t key, int64_t keys) NPU_SIMD_INLINE_LAMBDA {
        this->template WeighPairs<kGroup>(b_.scores + key * kWidth, b_.scores + key / 2 * kWidth, key, keys, 1.0f,
                                          dropout, reference, sum);
      };
      int64_t j = part.from;
      for (; j + kGroup <= part.to; j += kGroup) weigh(j, kGroup);
      if (j < part.to) weigh(j, part.to - j);
    }
    for (int v = 0; v < kVectors; ++v) Store(b_.sum + part.panel * kWidth + v * kLanes, sum[v]);
  }

  template <int kColumns>
  NPU_SIMD_INLINE void ValueTile(const float* values, const float* weights, int64_t steps, const Vec (&scale)[kVectors],
                                 float* sums) const {
    const int64_t stride = b_.value_stride;
    Vec sum[kColumns][kVectors];
#pragma GCC unroll 16
    for (int d = 0; d < kColumns; ++d) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[d][v] = Load(sums + d * kWidth + v * kLanes) * scale[v];
    }
    for (int64_t step = 0; step < steps; ++step) {
      Vec w[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) w[v] = Load(weights + step * kWidth + v * kLanes);
#pragma GCC unroll 16
      for (int d = 0; d < kColumns; ++d) {
        const float value = values[step * stride + d];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) Math::MultiplyAdd(sum[d][v], value, w[v]);
      }
    }
#pragma GCC unroll 16
    for (int d = 0; d < kColumns; ++d) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Store(sums + d * kWidth + v * kLanes, sum[d][v]);
    }
  }

  const float weight_scale_ = WeightScale(p_);
};

// An item of few rows fills one vector instead of half of two.
template <class Math>
void RunPanelItem(const Problem& p, const Item& item, float* partials, void* scratch) {
  if (item.rows <= kLanes) {
    PanelItem<Math, 1>(p, item, scratch).Run(partials);
  } else {
    PanelItem<Math, kPanelVectors>(p, item, scratch).Run(partials);
  }
}

}  // namespace npu::attention
