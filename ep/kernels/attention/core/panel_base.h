// What an Item of many rows does with either kind of matmul (panel.h, tile_panel.h). Queries run across the lanes of
// kVectors vectors side by side, so that maximum, sum and rescaling stay within a lane. Scores are stored transposed,
// [key][query]: the layout that the second matmul reads, once they are weights.
#pragma once

#include <cmath>

#include "ep/kernels/attention/core/panel_buffers.h"
#include "ep/kernels/attention/core/plain_rows.h"
#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

template <class Math, int kVectors>
class PanelBase {
 protected:
  using Element = typename Math::Element;
  static constexpr int kWidth = kVectors * kLanes;
  static constexpr int kKeyStep = PanelBuffers<Math, kVectors>::kKeyStep;

  PanelBase(const Problem& p, const Item& item, void* scratch)
      : p_(p), item_(item), s_(p.sequences[static_cast<size_t>(item.sequence)]), b_(p, item.rows, scratch) {}

  // What a panel sees of a block: the keys [from, to).
  struct Part {
    int64_t panel, from = 0, to = 0;
    Cover cover = Cover::kNone;
    bool empty() const { return from >= to; }
  };

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

  int64_t Panels() const { return (item_.rows + kWidth - 1) / kWidth; }
  const float* QueriesOf(int64_t panel) const { return b_.queries + panel * b_.padded_words * kWidth; }
  float* SumsOf(int64_t panel) const { return b_.sums + panel * b_.value_stride * kWidth; }

  int64_t RowsOf(int64_t panel) const { return std::min<int64_t>(kWidth, item_.rows - panel * kWidth); }

  void Begin(int64_t panel) {
    const int64_t rows = RowsOf(panel);
    float* max = b_.max + panel * kWidth;
    std::fill_n(max, kWidth, kNegativeInfinity);
    std::fill_n(b_.sum + panel * kWidth, kWidth, 0.0f);
    std::fill_n(b_.sums + panel * b_.value_stride * kWidth, b_.value_stride * kWidth, 0.0f);
    RowPlace places[kWidth];
    RowPlaces next(p_, item_, panel * kWidth);
    for (int64_t lane = 0; lane < kWidth; ++lane) {
      KeyRange keys;  // none for a lane without a row
      if (lane < rows) {
        places[lane] = next.Next();
        keys = KeysOfRow(s_, places[lane].query);
      }
      b_.first_key[panel * kWidth + lane] = static_cast<int32_t>(std::max(keys.begin, item_.key_begin));
      b_.last_key[panel * kWidth + lane] = static_cast<int32_t>(std::min(keys.end, item_.key_end));
    }
    b_.seen[panel] = SeenBy(panel);
    for (int v = 0; v < kVectors; ++v) {
      TransposeQueries(places + v * kLanes, std::clamp<int64_t>(rows - v * kLanes, 0, kLanes),
                       b_.queries + panel * b_.padded_words * kWidth + v * kLanes);
    }
  }

  // to[word][kWidth] = the words of the queries at these places, zeros beside them. Read in place, or from copies if
  // they have to be converted, padded or joined with other columns.
  void TransposeQueries(const RowPlace* places, int64_t count, float* to) {
    const int64_t row_words = b_.padded_words;
    const bool in_place =
        p_.query_dtype == DTypeOf<Element>::value && p_.rope_size == 0 && p_.head_size == row_words * Math::kElements;
    const float* from[kLanes];
    if (!in_place || count < kLanes) std::fill_n(b_.rows, kLanes * row_words, 0.0f);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      float* copy = b_.rows + lane * row_words;
      from[lane] = copy;
      if (lane >= count) continue;
      const RowPlace& at = places[lane];
      if (in_place) {
        from[lane] = reinterpret_cast<const float*>(static_cast<const Element*>(p_.query.data) + s_.query +
                                                    at.head * p_.query.head_stride + at.query * p_.query.row_stride);
      } else {
        CopyQuery(p_, s_, at, reinterpret_cast<Element*>(copy));
      }
    }
    for (int64_t word = 0; word < row_words; word += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = Load(from[i] + word);
      Transpose(block);
      for (int i = 0; i < kLanes; ++i) Store(to + (word + i) * kWidth, block[i]);
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

  Cover MaskCover(int64_t panel, int64_t key, int64_t keys) const {
    if (p_.mask == nullptr) return Cover::kNone;
    // The panel's rows have masks of several heads, or the keys lie apart in the mask.
    if (p_.mask_head_stride != 0 || s_.column_gap != 0) return Cover::kSome;
    const int64_t first = PlaceOf(p_, item_, panel * kWidth).query;
    const int64_t last = PlaceOf(p_, item_, panel * kWidth + RowsOf(panel) - 1).query;
    return CoverOf(p_.mask + s_.mask + first * p_.mask_row_stride + key, p_.mask_row_stride, last - first + 1, keys);
  }

  // The bias of the keys [from, to) of the block, [key][query]; null if there is none.
  const float* BiasOf(const Part& part, int64_t begin) {
    if (part.cover != Cover::kSome && p_.bias.data == nullptr) return nullptr;
    FillLanes(part, b_.bias,
              [&](int64_t r, float* row) { FillBias(p_, item_, r, begin + part.from, part.to - part.from, row); });
    return b_.bias;
  }
  // The factors of dropout, likewise, in `to`.
  const float* DropoutOf(const Part& part, int64_t begin, float* to) {
    if (!p_.dropout.active()) return nullptr;
    FillLanes(part, to,
              [&](int64_t r, float* row) { FillDropout(p_, item_, r, begin + part.from, part.to - part.from, row); });
    return to;
  }

  // Calls fill(row of the item, to) for the keys of a part and transposes the rows. Zeros follow up to a whole step.
  template <class F>
  void FillLanes(const Part& part, float* lanes, F&& fill) {
    const int64_t panel = part.panel, from = part.from, to = part.to, rows = RowsOf(panel);
    const int64_t end = std::min(RoundUp(to, std::max(kLanes, kKeyStep)), b_.key_block);
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
        TransposeTo(b_.bias_rows + key, b_.key_block, lanes + key * kWidth + v * kLanes, kWidth);
      }
    }
  }

  // Minus infinity in lanes that do not see the key at `position`.
  NPU_SIMD_INLINE static Vec HiddenIfUnseen(Vec score, int32_t position, const int32_t* first_key,
                                            const int32_t* last_key) {
    const IntVec at = Broadcast(position);
    return (at < Load(first_key)) | (at >= Load(last_key)) ? Broadcast(kNegativeInfinity) : score;
  }

  // Turns the dot products of kKeys keys from `key` on into scores, stored from `scores` on, and updates the maximum.
  // With `position` >= 0 (that of the first key), some lane does not see all of them.
  template <int kKeys, class Product>
  NPU_SIMD_INLINE void FinishScores(float* scores, int64_t key, int32_t position, const float* bias,
                                    const int32_t* first_key, const int32_t* last_key, Vec (&max)[kVectors],
                                    Product&& product) const {
    const float scale = score_scale_;
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

  // Weights of the keys [key, key + keys) of the block, at most kMost of them, whose scores are stored without
  // `factor`: in pairs, and added to `sum`. `dropout` are the factors of dropout, or null.
  template <int kMost>
  NPU_SIMD_INLINE static void WeighPairs(const float* scores, float* pairs, int64_t key, int64_t keys, float factor,
                                         const float* dropout, const Vec (&reference)[kVectors], Vec (&sum)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec weight[kMost];
#pragma GCC unroll 16
      for (int i = 0; i < kMost; ++i)
        weight[i] = i < keys ? Math::Weight(Load(scores + i * kWidth + v * kLanes) * factor - reference[v]) : Vec{};
      Vec even = weight[0], odd = weight[1];  // two chains of dependent additions
#pragma GCC unroll 16
      for (int i = 2; i < kMost; i += 2) even += weight[i], odd += weight[i + 1];
      sum[v] += even + odd;
#pragma GCC unroll 16
      for (int i = 0; i < kMost; i += 2) {
        if (i >= keys) break;
        Store(pairs + i / 2 * kWidth + v * kLanes,
              Math::Pack(Dropped(weight[i], dropout, key + i, v), Dropped(weight[i + 1], dropout, key + i + 1, v)));
      }
    }
  }

  void End(int64_t panel, float* partials) {
    const int64_t rows = RowsOf(panel);
    const float* sums = SumsOf(panel);
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
  const float score_scale_ = ScoreScale(p_) * kLog2E;
  const ScoreCap cap_{p_};
  const bool plain_ = ArePlainRows(p_, item_, DTypeOf<Element>::value);
};

template <class Math>
size_t PanelScratchBytes(const Problem& p, int64_t rows) {
  return PanelBuffers<Math, kPanelVectors>(p, std::max<int64_t>(rows, kPanelVectors * kLanes), nullptr).carver.bytes();
}

}  // namespace npu::attention
