// Computes an Item of many rows (prefill) in tile registers. While the vector unit turns the scores of kTileKeys keys
// into weights, the tile unit computes the scores of the next ones and the sums of the panel before (tile_products.h).
//
// Weights are relative to a reference of each row: the maximum of the first keys that the row sees, which is raised
// where a weight becomes large. So scores are read once, and sums are hardly ever rescaled.
#pragma once

#include "ep/kernels/attention/core/panel_base.h"
#include "ep/kernels/attention/core/tile_block.h"
#include "ep/kernels/attention/core/tile_products.h"

namespace npu::attention {

template <class Math, int kVectors>
class TilePanelItem : PanelBase<Math, kVectors> {
  using Base = PanelBase<Math, kVectors>;
  using Base::b_, Base::cap_, Base::item_, Base::kWidth, Base::p_, Base::s_, Base::score_scale_;
  using typename Base::Part;

 public:
  TilePanelItem(const Problem& p, const Item& item, void* scratch) : Base(p, item, scratch), products_(b_.chunks[2]) {}

  void Run(float* partials) {
    const int64_t panels = this->Panels();
    for (int64_t panel = 0; panel < panels; ++panel) this->Begin(panel);
    if (asks_for_max_) std::fill_n(b_.true_max, panels * kWidth, kNegativeInfinity);
    for (int64_t begin = item_.key_begin; begin < item_.key_end; begin += b_.key_block) {
      RunBlock(panels, begin, std::min(b_.key_block, item_.key_end - begin));
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
      if (asks_for_max_) MakeRelativeToMax(panel);
      this->End(panel, partials);
    }
  }

 private:
  // Of weights that are added to the sums of a row at once: what is larger raises its reference. float16 holds it.
  static constexpr float kLargest = 0x1p15f;

  // A panel against a block.
  struct Panel {
    Part part;
    int64_t begin;  // the position of the block's first key
    const float *bias, *dropout;
    bool all_set;    // every row has a reference
    int64_t summed;  // the values of keys before this one are in the sums
    Vec reference[kVectors] = {}, sum[kVectors] = {}, max[kVectors] = {};
  };

  // A block that is masked for every panel is never read.
  void RunBlock(int64_t panels, int64_t begin, int64_t n) {
    Part part = this->NextPart(0, panels, begin, n);
    if (part.empty()) return;
    LoadTileBlock(p_, s_, item_, begin, n, b_);
    TakeScores(part.panel, part.from, b_.chunks[0]);
    products_.FinishScores();
    while (!part.empty()) {
      const Part next = this->NextPart(part.panel + 1, panels, begin, n);
      RunPart(part, next, begin);
      part = next;
    }
    products_.Finish();
  }

  // The scores of the keys from `key` on, a multiple of kTileKeys, of the block.
  void TakeScores(int64_t panel, int64_t key, float* scores) {
    products_.TakeScores(b_.keys + key * b_.key_stride, b_.key_stride, this->QueriesOf(panel), b_.padded_words, scores);
  }
  void TakeSums(int64_t panel, int64_t from, int64_t to, const float* weights) {
    products_.TakeSums(b_.columns + from / 2, b_.column_stride, b_.value_stride, weights + from / 2 * kWidth,
                       (to - from) / 2, this->SumsOf(panel));
  }

  // The scores of the first keys have been computed, those of `next` are computed on the way.
  void RunPart(const Part& part, const Part& next, int64_t begin) {
    const int64_t end = RoundUp(part.to, kTileKeys), chunks = (end - part.from) / kTileKeys;
    Panel panel{part, begin, this->BiasOf(part, begin), this->DropoutOf(part, begin, b_.dropout), true, part.from};
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lanes = part.panel * kWidth + v * kLanes;
      panel.reference[v] = Load(b_.max + lanes);
      panel.sum[v] = Load(b_.sum + lanes);
      if (asks_for_max_) panel.max[v] = Load(b_.true_max + lanes);
    }
    panel.all_set = AllSet(panel);
    for (int64_t key = part.from, left = chunks; left > 0; key += kTileKeys, --left) {
      if (left > 1) {
        TakeScores(part.panel, key + kTileKeys, b_.chunks[1]);
      } else if (!next.empty()) {
        TakeScores(next.panel, next.from, b_.chunks[1]);
      }
      Weigh(panel, key, left);
      products_.FinishScores();
      std::swap(b_.chunks[0], b_.chunks[1]);
    }
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lanes = part.panel * kWidth + v * kLanes;
      Store(b_.max + lanes, panel.reference[v]);
      Store(b_.sum + lanes, panel.sum[v]);
      if (asks_for_max_) Store(b_.true_max + lanes, panel.max[v]);
    }
    TakeSums(part.panel, panel.summed, end, b_.weights[0]);
    std::swap(b_.weights[0], b_.weights[1]);
  }

  static bool AllSet(const Panel& panel) {
    bool set = true;
    for (int v = 0; v < kVectors; ++v) set = set && MaxLane(-panel.reference[v]) != -kNegativeInfinity;
    return set;
  }

  // Turns the scores of the keys from `key` on into weights, beside a share of the products: `left` chunks are left.
  NPU_SIMD_INLINE void Weigh(Panel& panel, int64_t key, int64_t left) {
    float factor = score_scale_;  // of the stored scores
    if (panel.bias != nullptr || cap_.active() || !(score_scale_ > 0.0f)) {
      factor = 1.0f;
      FinishChunk(panel, key);
    } else {
      HideUnseen(panel, key);
    }
    if (!panel.all_set) SetReferences(panel, factor);
    if (asks_for_max_) {
      for (int v = 0; v < kVectors; ++v) panel.max[v] = Max(panel.max[v], MaxOfChunk(v) * factor);
    }
    Vec sum[kVectors] = {};
    WeighBeside(panel, key, factor, products_.score_steps() + (products_.sum_steps() + left - 1) / left, sum);
    if (AnyLarge(sum)) [[unlikely]]
      WeighAgain(panel, key, factor, sum);
    for (int v = 0; v < kVectors; ++v) panel.sum[v] += sum[v];
  }

  [[gnu::noinline]] void WeighAgain(Panel& panel, int64_t key, float factor, Vec (&sum)[kVectors]) {
    Raise(panel, key, factor);
    for (Vec& of_lanes : sum) of_lanes = Vec{};
    WeighBeside(panel, key, factor, 0, sum);
  }

  NPU_SIMD_INLINE void WeighBeside(const Panel& panel, int64_t key, float factor, int64_t steps, Vec (&sum)[kVectors]) {
    Vec reference[kVectors];
    // No key seen yet: any finite reference keeps -inf - reference from becoming NaN.
    for (int v = 0; v < kVectors; ++v)
      reference[v] = panel.reference[v] == kNegativeInfinity ? Vec{} : panel.reference[v];
    if (panel.dropout == nullptr) {
      WeighGroups(nullptr, key, factor, steps, reference, sum);
    } else {
      WeighGroups(panel.dropout, key, factor, steps, reference, sum);
    }
  }

  NPU_SIMD_INLINE void WeighGroups(const float* dropout, int64_t key, float factor, int64_t steps,
                                   const Vec (&reference)[kVectors], Vec (&sum)[kVectors]) {
    // As many vectors of exponentials as a step of products takes time: a processor looks some 500 instructions ahead.
    constexpr int kGroup = 4;
    constexpr int64_t kGroups = kTileKeys / kGroup;
    const float* scores = b_.chunks[0];
    float* weights = b_.weights[0] + key / 2 * kWidth;
    int64_t due = 0;
    for (int64_t i = 0; i < kGroups; ++i, scores += kGroup * kWidth, weights += kGroup / 2 * kWidth) {
      this->template WeighPairs<kGroup>(scores, weights, key + i * kGroup, kGroup, factor, dropout, reference, sum);
      amx::CompilerBarrier();
      for (due += steps; due >= kGroups; due -= kGroups) products_.Step();
      amx::CompilerBarrier();
    }
  }

  NPU_SIMD_INLINE static bool AnyLarge(const Vec (&sum)[kVectors]) {
    int any = 0;
    for (int v = 0; v < kVectors; ++v) any |= _mm512_cmp_ps_mask(sum[v], Broadcast(kLargest), _CMP_GT_OQ);
    return any != 0;
  }

  // The scores of a chunk with bias, cap or a scale that is not positive, and minus infinity where rows do not see
  // keys.
  [[gnu::noinline]] void FinishChunk(const Panel& panel, int64_t key) {
    const int64_t lanes = panel.part.panel * kWidth;
    const PanelKeys& seen = b_.seen[panel.part.panel];
    Vec max[kVectors] = {};
    for (int64_t j = 0; j < kTileKeys; j += 4) {
      const int64_t position = panel.begin + key + j;
      const bool edge = position < seen.all_first || position + 4 > seen.all_last;
      float* scores = b_.chunks[0] + j * kWidth;
      this->template FinishScores<4>(scores, key + j, edge ? static_cast<int32_t>(position) : -1, panel.bias,
                                     b_.first_key + lanes, b_.last_key + lanes, max,
                                     [&](int i, int v) { return Load(scores + i * kWidth + v * kLanes); });
    }
  }

  // Minus infinity for keys that some row does not see.
  void HideUnseen(const Panel& panel, int64_t key) {
    const PanelKeys& seen = b_.seen[panel.part.panel];
    const int64_t first = panel.begin + key, last = first + kTileKeys;
    if (first >= seen.all_first && last <= seen.all_last) return;
    Hide(panel, first, first, std::min(last, seen.all_first));
    Hide(panel, first, std::max(first, seen.all_last), last);
  }
  // The positions [from, to) of a chunk that begins at `first`.
  void Hide(const Panel& panel, int64_t first, int64_t from, int64_t to) {
    const int64_t lanes = panel.part.panel * kWidth;
    for (int64_t position = from; position < to; ++position) {
      for (int v = 0; v < kVectors; ++v) {
        float* score = b_.chunks[0] + (position - first) * kWidth + v * kLanes;
        Store(score, Base::HiddenIfUnseen(Load(score), static_cast<int32_t>(position),
                                          b_.first_key + lanes + v * kLanes, b_.last_key + lanes + v * kLanes));
      }
    }
  }

  NPU_SIMD_INLINE Vec MaxOfChunk(int v) const {
    const float* scores = b_.chunks[0] + v * kLanes;
    Vec even = Load(scores), odd = Load(scores + kWidth);  // two chains of dependent instructions
    for (int64_t j = 2; j < kTileKeys; j += 2) {
      even = Max(even, Load(scores + j * kWidth));
      odd = Max(odd, Load(scores + (j + 1) * kWidth));
    }
    return Max(even, odd);
  }

  // Of rows that have seen no key before.
  [[gnu::noinline]] void SetReferences(Panel& panel, float factor) const {
    for (int v = 0; v < kVectors; ++v) {
      const Vec old = panel.reference[v], max = MaxOfChunk(v) * factor;
      panel.reference[v] = old == kNegativeInfinity ? max : old;
    }
    panel.all_set = AllSet(panel);
  }

  // Raises the references to the maximum of the chunk from `key` on, and rescales what was summed before.
  [[gnu::noinline]] void Raise(Panel& panel, int64_t key, float factor) {
    Vec scale[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const Vec old = panel.reference[v], raised = Max(old, MaxOfChunk(v) * factor);
      panel.reference[v] = raised;
      scale[v] = Exp2(old - (raised == kNegativeInfinity ? Vec{} : raised));
    }
    products_.Finish();
    if (panel.summed < key) {
      TakeSums(panel.part.panel, panel.summed, key, b_.weights[0]);
      products_.Finish();
      panel.summed = key;
    }
    for (int v = 0; v < kVectors; ++v) panel.sum[v] *= scale[v];
    Rescale(panel.part.panel, scale);
  }

  // sums[column][query] *= scale[query]
  void Rescale(int64_t panel, const Vec (&scale)[kVectors]) {
    float* at = this->SumsOf(panel);
    for (int64_t d = 0; d < b_.value_stride; ++d) {
      for (int v = 0; v < kVectors; ++v, at += kLanes) Store(at, Load(at) * scale[v]);
    }
  }

  // Statistics of a row are told relative to its maximum.
  void MakeRelativeToMax(int64_t panel) {
    Vec scale[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lanes = panel * kWidth + v * kLanes;
      const Vec max = Load(b_.true_max + lanes);
      scale[v] = Exp2(Load(b_.max + lanes) - (max == kNegativeInfinity ? Vec{} : max));
      Store(b_.max + lanes, max);
      Store(b_.sum + lanes, Load(b_.sum + lanes) * scale[v]);
    }
    Rescale(panel, scale);
  }

  const bool asks_for_max_ = p_.row_max != nullptr;
  TileProducts<typename Math::Dot, kVectors> products_;
};

// An item of few rows fills one vector instead of half of two.
template <class Math>
void RunTilePanelItem(const Problem& p, const Item& item, float* partials, void* scratch) {
  const TileScope tiles;
  if (item.rows <= kLanes) {
    TilePanelItem<Math, 1>(p, item, scratch).Run(partials);
  } else {
    TilePanelItem<Math, kPanelVectors>(p, item, scratch).Run(partials);
  }
}

}  // namespace npu::attention
