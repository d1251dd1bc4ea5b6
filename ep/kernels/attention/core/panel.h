// Computes an Item of many rows: prefill. Queries run across the lanes of kVectors vectors side by side, so that keys
// and values are only broadcast from row-major blocks, and maximum, sum and rescaling stay within a lane. Scores are
// stored transposed, [key][query]: exactly the operand that the second matmul reads.
//
// `Math` selects the arithmetic of the matmuls: a 32-bit word of the operands (one float, or a pair of bfloat16 along
// the summed axis), and either the instruction that multiplies a broadcast word with a vector of them or, with kTiles,
// tile registers (tile_products.h).
#pragma once

#include <cmath>

#include "ep/kernels/attention/core/panel_block.h"
#include "ep/kernels/attention/core/plain_rows.h"
#include "ep/kernels/attention/core/query_rows.h"
#include "ep/kernels/attention/core/tile_products.h"

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
class PanelItem {
  using Element = typename Math::Element;
  static constexpr int kWidth = kVectors * kLanes;
  static constexpr int kKeyStep = PanelBuffers<Math, kVectors>::kKeyStep;

 public:
  PanelItem(const Problem& p, const Item& item, void* scratch)
      : p_(p), item_(item), s_(p.sequences[static_cast<size_t>(item.sequence)]), b_(p, item.rows, scratch) {}

  void Run(float* partials) {
    const int64_t panels = (item_.rows + kWidth - 1) / kWidth;
    for (int64_t panel = 0; panel < panels; ++panel) Begin(panel);
    for (int64_t begin = item_.key_begin; begin < item_.key_end; begin += b_.key_block) {
      const int64_t n = std::min(b_.key_block, item_.key_end - begin);
      RunBlock(panels, begin, n);
    }
    for (int64_t panel = 0; panel < panels; ++panel) End(panel, partials);
  }

 private:
  // What a panel sees of a block: the keys [from, to).
  struct Part {
    int64_t panel, from = 0, to = 0;
    Cover cover = Cover::kNone;
    bool empty() const { return from >= to; }
  };

  // The products of other panels, which are computed in tiles beside the exponentials of this one.
  struct NoProducts {};
  template <class M>
  struct ProductsOf {
    using Type = NoProducts;
  };
  template <class M>
    requires M::kTiles
  struct ProductsOf<M> {
    using Type = TileProducts<typename M::Dot, kVectors>;
  };
  using Products = typename ProductsOf<Math>::Type;

  // A block that is masked for every panel is never read.
  void RunBlock(int64_t panels, int64_t begin, int64_t n) {
    Part part = NextPart(0, panels, begin, n);
    if (part.empty()) return;
    LoadPanelBlock(p_, s_, item_, begin, n, b_);
    Products products;
    if constexpr (Math::kTiles) {
      products.Take(ScoresOf(part, b_.scores));
      products.Finish();
    }
    while (!part.empty()) {
      const Part next = NextPart(part.panel + 1, panels, begin, n);
      if constexpr (Math::kTiles) {
        if (!next.empty()) products.Take(ScoresOf(next, b_.next_scores));
      }
      Step(part, begin, products);
      if constexpr (Math::kTiles) std::swap(b_.scores, b_.next_scores);
      part = next;
    }
    if constexpr (Math::kTiles) products.Finish();
  }

  // The first panel from `panel` on that sees some of the block; an empty part if none does.
  Part NextPart(int64_t panel, int64_t panels, int64_t begin, int64_t n) const {
    for (; panel < panels; ++panel) {
      const PanelKeys& seen = b_.seen[panel];
      Part part{panel};
      part.from = std::max<int64_t>(seen.some_first - begin, 0) / kKeyStep * kKeyStep;
      part.to = std::min(seen.some_last - begin, n);
      if (part.empty()) continue;
      part.cover = MaskCover(panel, begin + part.from, part.to - part.from);
      if (part.cover != Cover::kAll) return part;
    }
    return {panel};
  }

  const float* QueriesOf(int64_t panel) const { return b_.queries + panel * b_.padded_words * kWidth; }

  auto ScoresOf(const Part& part, float* scores) const
    requires Math::kTiles
  {
    return TileScores<typename Math::Dot, kVectors>(b_.keys, b_.key_stride, QueriesOf(part.panel), b_.padded_words,
                                                    part.from, RoundUp(part.to, kTileKeys), scores);
  }

  int64_t RowsOf(int64_t panel) const { return std::min<int64_t>(kWidth, item_.rows - panel * kWidth); }

  void Begin(int64_t panel) {
    const int64_t rows = RowsOf(panel);
    float* max = b_.max + panel * kWidth;
    std::fill_n(max, kWidth, kNegativeInfinity);
    std::fill_n(b_.sum + panel * kWidth, kWidth, 0.0f);
    std::fill_n(b_.sums + panel * b_.value_stride * kWidth, b_.value_stride * kWidth, 0.0f);
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      KeyRange keys;  // none for a lane without a row
      if (lane < rows) keys = KeysOfRow(s_, PlaceOf(p_, item_, panel * kWidth + lane).query);
      b_.first_key[panel * kWidth + lane] = static_cast<int32_t>(std::max(keys.begin, item_.key_begin));
      b_.last_key[panel * kWidth + lane] = static_cast<int32_t>(std::min(keys.end, item_.key_end));
    }
    b_.seen[panel] = SeenBy(panel);
    const int64_t row_words = b_.padded_words;
    for (int v = 0; v < kVectors; ++v) {
      std::fill_n(b_.rows, kLanes * row_words, 0.0f);
      for (int64_t lane = 0; lane < kLanes && v * kLanes + lane < rows; ++lane) {
        CopyQuery(p_, item_, panel * kWidth + v * kLanes + lane,
                  reinterpret_cast<Element*>(b_.rows + lane * row_words));
      }
      for (int64_t word = 0; word < row_words; word += kLanes) {
        TransposeTo(b_.rows + word, row_words, b_.queries + (panel * row_words + word) * kWidth + v * kLanes, kWidth);
      }
    }
  }

  PanelKeys SeenBy(int64_t panel) const {
    PanelKeys out;
    const int32_t *first = b_.first_key + panel * kWidth, *last = b_.last_key + panel * kWidth;
    for (int64_t lane = 0; lane < RowsOf(panel); ++lane) {
      if (first[lane] >= last[lane]) {
        out.all_last = 0;
        continue;
      }
      out.some_first = std::min<int64_t>(out.some_first, first[lane]);
      out.some_last = std::max<int64_t>(out.some_last, last[lane]);
      out.all_first = std::max<int64_t>(out.all_first, first[lane]);
      out.all_last = std::min<int64_t>(out.all_last, last[lane]);
    }
    return out;
  }

  // Processes one panel against the block of keys, and `products` meanwhile.
  void Step(const Part& part, int64_t begin, Products& products) {
    const int64_t panel = part.panel, from = part.from, to = part.to;
    const int32_t* first_key = b_.first_key + panel * kWidth;
    const int32_t* last_key = b_.last_key + panel * kWidth;
    const PanelKeys& seen = b_.seen[panel];

    const float* bias = nullptr;
    if (part.cover == Cover::kSome || p_.bias.data != nullptr) {
      FillLanes(panel, from, to, [&](int64_t r, float* row) { FillBias(p_, item_, r, begin + from, to - from, row); });
      bias = b_.bias;
    }

    Vec max[kVectors];
    for (int v = 0; v < kVectors; ++v) max[v] = Broadcast(kNegativeInfinity);
    const auto position = [&](int64_t key, int size) {  // the first key's, if some lane does not see them all; else -1
      const bool edge = begin + key < seen.all_first || begin + key + size > seen.all_last;
      return edge ? static_cast<int32_t>(begin + key) : -1;
    };
    float factor = 1.0f;  // of the stored scores
    if constexpr (Math::kTiles) {
      if (bias == nullptr && !cap_.active() && score_scale_ > 0.0f) {
        factor = score_scale_;
        MaxOfProducts(part, begin, max);
      } else {
        for (int64_t key = from; key < to; key += 4) {
          FinishScores<4>(key, position(key, 4), bias, first_key, last_key, max,
                          [&](int j, int v) { return Load(b_.scores + (key + j) * kWidth + v * kLanes); });
        }
      }
    } else {
      ForEachTile(from, RoundUp(to, 4), [&](auto size, int64_t key) NPU_SIMD_INLINE_LAMBDA {
        ScoreTile<size>(QueriesOf(panel), key, position(key, size), bias, first_key, last_key, max);
      });
    }
    const float* dropout = nullptr;
    if (p_.dropout.active()) {  // the bias buffer is no longer needed
      FillLanes(panel, from, to,
                [&](int64_t r, float* row) { FillDropout(p_, item_, r, begin + from, to - from, row); });
      dropout = b_.bias;
    }
    Vec scale[kVectors];
    Normalise(part, max, factor, dropout, products, scale);
    constexpr int kElements = Math::kElements;
    const float* values = b_.values + from / kElements * b_.value_stride;
    const float* probabilities = b_.scores + from / kElements * kWidth;
    float* sums = b_.sums + panel * b_.value_stride * kWidth;
    const int64_t steps = (to + kElements - 1) / kElements - from / kElements;
    if constexpr (Math::kTiles) {
      products.Finish();
      const int64_t whole = RoundUp(steps, kLanes);
      std::fill(b_.scores + (from / kElements + steps) * kWidth, b_.scores + (from / kElements + whole) * kWidth, 0.0f);
      Rescale(scale, sums);
      products.Take(TileSums<typename Math::Dot, kVectors>(b_.columns + from / kElements, b_.column_stride,
                                                           b_.value_stride, probabilities, whole, sums));
    } else {
      ForEachTile(0, RoundUp(p_.value_size, 4), [&](auto size, int64_t column) NPU_SIMD_INLINE_LAMBDA {
        ValueTile<size>(values + column, probabilities, steps, scale, sums + column * kWidth);
      });
    }
  }

  Cover MaskCover(int64_t panel, int64_t key, int64_t keys) const {
    if (p_.mask == nullptr) return Cover::kNone;
    // The panel's rows have masks of several heads, or the keys lie apart in the mask.
    if (p_.mask_head_stride != 0 || s_.column_gap != 0) return Cover::kSome;
    const int64_t first = PlaceOf(p_, item_, panel * kWidth).query;
    const int64_t last = PlaceOf(p_, item_, panel * kWidth + RowsOf(panel) - 1).query;
    return CoverOf(p_.mask + s_.mask + first * p_.mask_row_stride + key, p_.mask_row_stride, last - first + 1, keys);
  }

  // Calls fill(row of the item, to) for keys [from, to) of the block and transposes the rows into the bias buffer.
  template <class F>
  void FillLanes(int64_t panel, int64_t from, int64_t to, F&& fill) {
    const int64_t rows = RowsOf(panel);
    const int64_t end = std::min(RoundUp(to, kLanes), b_.key_block);
    for (int v = 0; v < kVectors; ++v) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        float* row = b_.bias_rows + lane * b_.key_block;
        const int64_t r = v * kLanes + lane;
        if (r < rows) {
          fill(panel * kWidth + r, row + from);
        } else {
          std::fill(row + from, row + to, 0.0f);
        }
        std::fill(row + to, row + end, 0.0f);
      }
      for (int64_t key = from / kLanes * kLanes; key < end; key += kLanes) {
        TransposeTo(b_.bias_rows + key, b_.key_block, b_.bias + key * kWidth + v * kLanes, kWidth);
      }
    }
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
    FinishScores<kKeys>(key, position, bias, first_key, last_key, max,
                        [&](int j, int v) NPU_SIMD_INLINE_LAMBDA { return sum[j][v]; });
  }

  // The maximum of the scores of a panel whose scores are its products times a positive scale. The products stay as
  // they are, but for those of keys that some lane does not see.
  void MaxOfProducts(const Part& part, int64_t begin, Vec (&max)[kVectors]) {
    const PanelKeys& seen = b_.seen[part.panel];
    HideUnseen(part, begin, part.from, std::min(part.to, seen.all_first - begin));
    HideUnseen(part, begin, std::max(part.from, seen.all_last - begin), part.to);
    constexpr int kChains = 4;  // of dependent instructions
    Vec chain[kChains][kVectors];
    for (auto& of_chain : chain) std::copy_n(max, kVectors, of_chain);
    const float* scores = b_.scores + part.from * kWidth;
    int64_t left = part.to - part.from;
    for (; left >= kChains; left -= kChains, scores += kChains * kWidth) {
#pragma GCC unroll 4
      for (int i = 0; i < kChains; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) chain[i][v] = Max(chain[i][v], Load(scores + i * kWidth + v * kLanes));
      }
    }
    for (; left > 0; --left, scores += kWidth) {
      for (int v = 0; v < kVectors; ++v) chain[0][v] = Max(chain[0][v], Load(scores + v * kLanes));
    }
    for (int v = 0; v < kVectors; ++v)
      max[v] = Max(Max(chain[0][v], chain[1][v]), Max(chain[2][v], chain[3][v])) * score_scale_;
  }

  // Minus infinity in lanes that do not see the key at `position`.
  NPU_SIMD_INLINE static Vec HiddenIfUnseen(Vec score, int32_t position, const int32_t* first_key,
                                            const int32_t* last_key) {
    const IntVec at = Broadcast(position);
    return (at < Load(first_key)) | (at >= Load(last_key)) ? Broadcast(kNegativeInfinity) : score;
  }

  // Minus infinity for the keys [from, to) of the block in lanes that do not see them.
  void HideUnseen(const Part& part, int64_t begin, int64_t from, int64_t to) {
    const int32_t* first_key = b_.first_key + part.panel * kWidth;
    const int32_t* last_key = b_.last_key + part.panel * kWidth;
    for (int64_t key = from; key < to; ++key) {
      const auto position = static_cast<int32_t>(begin + key);
      for (int v = 0; v < kVectors; ++v) {
        float* score = b_.scores + key * kWidth + v * kLanes;
        Store(score, HiddenIfUnseen(Load(score), position, first_key + v * kLanes, last_key + v * kLanes));
      }
    }
  }

  // sums[column][query] *= scale[query]. Once a panel has seen its maximum, there is nothing to do.
  void Rescale(const Vec (&scale)[kVectors], float* sums) const {
    bool all_one = true;
    for (int v = 0; v < kVectors; ++v) all_one = all_one && AllEqual(scale[v], 1.0f);
    if (all_one) return;
    for (int64_t d = 0; d < b_.value_stride; ++d) {
      for (int v = 0; v < kVectors; ++v) {
        float* at = sums + d * kWidth + v * kLanes;
        Store(at, Load(at) * scale[v]);
      }
    }
  }

  // Turns the dot products of kKeys keys from `key` on into stored scores and updates the maximum.
  template <int kKeys, class Product>
  NPU_SIMD_INLINE void FinishScores(int64_t key, int32_t position, const float* bias, const int32_t* first_key,
                                    const int32_t* last_key, Vec (&max)[kVectors], Product&& product) {
    const float scale = score_scale_;
    float* scores = b_.scores + key * kWidth;
    if (bias != nullptr) bias += key * kWidth;
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Vec score = product(j, v) * scale;
        if (cap_.active()) score = cap_(score);
        if (bias != nullptr) score += Load(bias + j * kWidth + v * kLanes);
        if (position >= 0) {
          score = HiddenIfUnseen(score, position + j, first_key + v * kLanes, last_key + v * kLanes);
        }
        max[v] = Max(max[v], score);
        Store(scores + j * kWidth + v * kLanes, score);
      }
    }
  }

  NPU_SIMD_INLINE static Vec Dropped(Vec weight, const float* dropout, int64_t key, int v) {
    return dropout == nullptr ? weight : weight * Load(dropout + key * kWidth + v * kLanes);
  }

  // The steps of products, spread over `turns` pieces of other work.
  class Evenly {
   public:
    Evenly(Products& products, int64_t turns) : products_(products), turns_(turns) {
      if constexpr (Math::kTiles) steps_ = products.steps();
    }
    NPU_SIMD_INLINE void Go() {
      if constexpr (Math::kTiles) {
        for (due_ += steps_; due_ >= turns_; due_ -= turns_) products_.Step();
      }
    }

   private:
    [[maybe_unused]] Products& products_;
    int64_t turns_, steps_ = 0, due_ = 0;
  };

  // Turns scores, which are stored without `factor`, into weights relative to the new maximum; `scale` is the factor
  // for earlier sums. `dropout` are the factors of dropout, or null.
  void Normalise(const Part& part, const Vec (&block_max)[kVectors], float factor, const float* dropout,
                 Products& products, Vec (&scale)[kVectors]) {
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
          const Vec weight = Math::Weight(Load(scores + j * kWidth) * factor - reference[v]);
          sum[v] += weight;
          const Vec taken = Dropped(weight, dropout, j, v);
          Store(scores + j * kWidth, weight_scale_ == 0.0f ? taken : QuantiseWeight(taken, weight_scale_));
        }
      }
    } else {
      constexpr int kGroup = 8;  // keys: as many vectors as the steps of products take instructions
      const int64_t groups = (part.to - part.from) / kGroup;
      Evenly beside(products, groups + 1);
      int64_t j = part.from;
      for (; j + kGroup <= part.to; j += kGroup) {
        WeighPairs<kGroup>(j, kGroup, factor, dropout, reference, sum);
        beside.Go();
      }
      if (j < part.to) WeighPairs<kGroup>(j, part.to - j, factor, dropout, reference, sum);
    }
    for (int v = 0; v < kVectors; ++v) Store(b_.sum + part.panel * kWidth + v * kLanes, sum[v]);
  }

  // Weights of the keys [key, key + keys), at most kMost of them, stored in pairs.
  template <int kMost>
  NPU_SIMD_INLINE void WeighPairs(int64_t key, int64_t keys, float factor, const float* dropout,
                                  const Vec (&reference)[kVectors], Vec (&sum)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float* scores = b_.scores + key * kWidth + v * kLanes;
      Vec weight[kMost];
#pragma GCC unroll 16
      for (int i = 0; i < kMost; ++i)
        weight[i] = i < keys ? Math::Weight(Load(scores + i * kWidth) * factor - reference[v]) : Vec{};
      Vec even = weight[0], odd = weight[1];  // two chains of dependent additions
#pragma GCC unroll 16
      for (int i = 2; i < kMost; i += 2) even += weight[i], odd += weight[i + 1];
      sum[v] += even + odd;
#pragma GCC unroll 16
      for (int i = 0; i < kMost; i += 2) {
        if (i >= keys) break;
        Store(b_.scores + (key + i) / 2 * kWidth + v * kLanes,
              Math::Pack(Dropped(weight[i], dropout, key + i, v), Dropped(weight[i + 1], dropout, key + i + 1, v)));
      }
    }
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

  void End(int64_t panel, float* partials) {
    const int64_t rows = RowsOf(panel);
    const float* sums = b_.sums + panel * b_.value_stride * kWidth;
    for (int v = 0; v < kVectors; ++v) {
      const int64_t lanes = std::clamp<int64_t>(rows - v * kLanes, 0, kLanes);
      if (plain_ && StorePlainRows(p_, item_, panel * kWidth + v * kLanes, lanes, sums + v * kLanes, kWidth,
                                   Load(b_.sum + panel * kWidth + v * kLanes), static_cast<Element*>(p_.output.data)))
        continue;
      for (int64_t d = 0; d < b_.value_stride; d += kLanes) {
        TransposeTo(sums + d * kWidth + v * kLanes, kWidth, b_.rows + d, b_.value_stride);
      }
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t r = panel * kWidth + v * kLanes + lane;
        EmitRow(p_, item_, r, {b_.max[r], b_.sum[r], b_.rows + lane * b_.value_stride}, partials);
      }
    }
  }

  const Problem& p_;
  const Item& item_;
  const Sequence& s_;
  PanelBuffers<Math, kVectors> b_;
  const float score_scale_ = ScoreScale(p_) * kLog2E, weight_scale_ = WeightScale(p_);
  const ScoreCap cap_{p_};
  const bool plain_ = ArePlainRows(p_, item_, DTypeOf<Element>::value);
};

// An item of few rows fills one vector instead of half of two.
template <class Math>
void RunPanelItem(const Problem& p, const Item& item, float* partials, void* scratch) {
  [[maybe_unused]] const std::conditional_t<Math::kTiles, TileScope, int> tiles{};
  if (item.rows <= kLanes) {
    PanelItem<Math, 1>(p, item, scratch).Run(partials);
  } else {
    PanelItem<Math, kPanelVectors>(p, item, scratch).Run(partials);
  }
}

template <class Math>
size_t PanelScratchBytes(const Problem& p, int64_t rows) {
  return PanelBuffers<Math, kPanelVectors>(p, std::max<int64_t>(rows, kPanelVectors * kLanes), nullptr).carver.bytes();
}

}  // namespace npu::attention
