#include "ep/kernels/attention/core/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "ep/kernels/attention/core/engine.h"
#include "ep/kernels/attention/core/key_value_rows.h"
#include "ep/kernels/attention/core/query_rows.h"

namespace npu::attention {

namespace {

constexpr int64_t kRowStep = 2 * kLanes;
constexpr int64_t kItemsPerThread = 4;  // balances items of uneven cost
constexpr int64_t kMinKeysPerPart = 256;
constexpr int64_t kMostSequenceBytes = 256 * 1024;  // the one that is read and the next one stay in the L2 cache

Engine ChooseEngine(const Problem& p) {
  const DType dtype = p.query_dtype;
  // The engines for 16-bit floats read contiguous rows without conversion.
  if (p.key.dtype == dtype && p.value.dtype == dtype && p.value.chunk == 0) {
    // A weight scaled by dropout may exceed float16's range.
    const bool fits = dtype == DType::kBFloat16 || !p.dropout.active();
    if (const Engine engine = TileEngine(dtype); engine.panel != nullptr && fits) return engine;
    if (const Engine engine = BFloat16Engine(); engine.panel != nullptr && dtype == DType::kBFloat16) return engine;
  }
  return FloatEngine(p.key.dtype);
}

int64_t MostItemRows(const Problem& p, const Engine& engine) {
  const int64_t row_bytes = 4 * (p.head_size + p.rope_size + p.value_size);
  return std::clamp(engine.item_bytes / row_bytes / kRowStep * kRowStep, kRowStep, engine.item_rows);
}

size_t PartialBytes(const Problem& p, int64_t rows) {
  return static_cast<size_t>(RoundUp(rows * PartialStride(p) * int64_t{sizeof(float)}, 64));
}

}  // namespace

Attention::Attention(Problem problem) : problem_(std::move(problem)), threads_(NumThreads()) { Plan(); }

void Attention::Plan() {
  const Problem& p = problem_;
  const int64_t group = p.heads / p.key_heads;
  const Engine engine = ChooseEngine(p);
  const int64_t max_rows = MostItemRows(p, engine);
  int64_t row_steps = 0;
  for (const Sequence& s : p.sequences) row_steps += (s.query_rows * group + kRowStep - 1) / kRowStep * p.key_heads;
  const int64_t item_rows =
      threads_ == 1 ? max_rows : std::clamp(row_steps / (threads_ * kItemsPerThread) * kRowStep, kRowStep, max_rows);

  int64_t narrow_rows = 0, panel_rows = 0;
  for (size_t i = 0; i < p.sequences.size(); ++i) {
    const Sequence& s = p.sequences[i];
    const int64_t rows = s.query_rows * group;
    for (int64_t head = 0; head < p.key_heads && rows > 0; ++head) {
      // Under a causal mask the last rows see the most keys: taking them first lets the threads finish together.
      for (int64_t begin = (rows - 1) / item_rows * item_rows; begin >= 0; begin -= item_rows) {
        Item item;
        item.sequence = static_cast<int32_t>(i);
        item.key_head = static_cast<int32_t>(head);
        item.row_begin = begin;
        item.rows = static_cast<int32_t>(std::min(item_rows, rows - begin));
        const KeyRange keys = KeysOfRows(s, begin / group, (begin + item.rows - 1) / group);
        item.key_begin = keys.begin;
        item.key_end = keys.end;
        items_.push_back(item);
        (item.rows <= kNarrowRows ? narrow_rows : panel_rows) =
            std::max<int64_t>(item.rows <= kNarrowRows ? narrow_rows : panel_rows, item.rows);
      }
    }
  }
  const int64_t partial_rows = SplitKeys();
  by_sequence_ = panel_rows == 0 && partial_rows == 0 && SequencesFitTheCache();

  narrow_ = engine.narrow;
  panel_ = engine.panel;
  if (narrow_rows > 0) scratch_bytes_ = engine.narrow_scratch_bytes(p);
  if (panel_rows > 0) scratch_bytes_ = std::max(scratch_bytes_, engine.panel_scratch_bytes(p, panel_rows));
  threads_ = std::min<int64_t>(threads_, static_cast<int64_t>(items_.size()));
  partials_bytes_ = PartialBytes(p, partial_rows);
  workspace_bytes_ = partials_bytes_ + static_cast<size_t>(threads_) * scratch_bytes_;
}

// The items have at most twice as many parts as SplitKeys aims for: an item has at most its share of them, and rounding
// down the work of a share at most halves it.
size_t Attention::MostWorkspaceBytes(const Problem& p, int64_t query_rows) {
  const auto threads = static_cast<int64_t>(NumThreads());
  const Engine engine = ChooseEngine(p);
  const int64_t rows = std::min(MostItemRows(p, engine), query_rows * (p.heads / p.key_heads));
  size_t scratch = engine.narrow_scratch_bytes(p);
  if (rows > kNarrowRows) scratch = std::max(scratch, engine.panel_scratch_bytes(p, rows));
  const int64_t parts = threads == 1 ? 0 : 2 * threads * kItemsPerThread;
  return PartialBytes(p, parts * rows) + static_cast<size_t>(threads) * scratch;
}

// Splits the keys of items too when there are too few items to keep the threads busy. Returns the number of rows of
// partial results.
int64_t Attention::SplitKeys() {
  const int64_t wanted = threads_ * kItemsPerThread;
  const auto count = static_cast<int64_t>(items_.size());
  if (threads_ == 1 || count == 0 || count >= wanted) return 0;
  int64_t work = 0;
  for (const Item& item : items_) work += item.rows * (item.key_end - item.key_begin);
  const int64_t share = std::max<int64_t>(1, work / wanted);

  std::vector<Item> split;
  int64_t partial_rows = 0;
  for (Item item : items_) {
    const int64_t keys = item.key_end - item.key_begin;
    const int64_t parts = std::min(item.rows * keys / share, keys / kMinKeysPerPart);
    if (parts <= 1) {
      split.push_back(item);
      continue;
    }
    const int64_t step = RoundUp((keys + parts - 1) / parts, 64);
    item.parts = static_cast<int32_t>((keys + step - 1) / step);
    for (int64_t begin = item.key_begin, end = item.key_end; begin < end; begin += step) {
      item.key_begin = begin;
      item.key_end = std::min(begin + step, end);
      item.partial = partial_rows;
      partial_rows += item.rows;
      split.push_back(item);
      item.parts = 0;
    }
  }
  items_ = std::move(split);
  return partial_rows;
}

// Whether there are enough sequences for the threads, each with few enough keys and values.
bool Attention::SequencesFitTheCache() const {
  const Problem& p = problem_;
  if (!HeadsLieTogether(p) || std::ssize(p.sequences) < threads_ * kItemsPerThread) return false;
  const int64_t row_bytes = p.key_heads * (p.head_size + p.value_size) * BitsOf(p.key.dtype) / 8;
  return std::all_of(items_.begin(), items_.end(), [&](const Item& item) {
    return (item.key_end - item.key_begin) * row_bytes <= kMostSequenceBytes;
  });
}

void Attention::Run(void* workspace) const {
  if (items_.empty()) return;
  auto* partials = static_cast<float*>(workspace);
  char* scratch = static_cast<char*>(workspace) + partials_bytes_;
  std::atomic<size_t> next{0};
  // One call per thread, each with its own scratch, takes items until none is left.
  ParallelFor(threads_, 1, [&](int64_t thread, int64_t) {
    void* own = scratch + static_cast<size_t>(thread) * scratch_bytes_;
    if (by_sequence_) {
      RunSequences(next, partials, own);
    } else {
      RunItems(next, partials, own);
    }
  });
  if (partials_bytes_ == 0) return;
  ParallelFor(static_cast<int64_t>(items_.size()), kItemsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (items_[static_cast<size_t>(i)].parts > 1) Merge(items_[static_cast<size_t>(i)], partials);
    }
  });
}

// An item of few rows takes little more than the latency of memory, so the next one is taken before it runs, and its
// keys are on their way meanwhile.
void Attention::RunItems(std::atomic<size_t>& next, float* partials, void* scratch) const {
  for (size_t i = next++, after; i < items_.size(); i = after) {
    const Item& item = items_[i];
    if (item.rows > kNarrowRows) {
      panel_(problem_, item, partials, scratch);
      after = next++;
      continue;
    }
    after = next++;
    if (after < items_.size()) PrefetchFirstRows(problem_, items_[after]);
    narrow_(problem_, item, nullptr, partials, scratch);
  }
}

// The heads of a sequence, whose items follow each other, find its rows in the cache and prefetch the next one's.
void Attention::RunSequences(std::atomic<size_t>& next, float* partials, void* scratch) const {
  const auto heads = static_cast<size_t>(problem_.key_heads);
  size_t i = next.fetch_add(heads);
  if (i < items_.size()) LinesAhead(problem_, items_[i]).PrefetchRest();
  for (size_t after; i < items_.size(); i = after) {
    after = next.fetch_add(heads);
    LinesAhead ahead = after < items_.size() ? LinesAhead(problem_, items_[after]) : LinesAhead();
    for (size_t head = 0; head < heads; ++head) narrow_(problem_, items_[i + head], &ahead, partials, scratch);
    ahead.PrefetchRest();
  }
}

// Merges the parts of a split item, whose partial rows are consecutive.
void Attention::Merge(const Item& first, float* partials) const {
  const int64_t stride = PartialStride(problem_);
  for (int64_t r = 0; r < first.rows; ++r) {
    const auto part = [&](int64_t i) { return partials + (first.partial + i * first.rows + r) * stride; };
    float max = kNegativeInfinity;
    for (int64_t i = 0; i < first.parts; ++i) max = std::max(max, part(i)[0]);
    const float reference = max == kNegativeInfinity ? 0.0f : max;
    RowState state{max, 0.0f, part(0) + 2};
    for (int64_t i = 0; i < first.parts; ++i) {
      const float scale = std::exp2(part(i)[0] - reference);
      const float* values = part(i) + 2;
      state.sum += part(i)[1] * scale;
      for (int64_t d = 0; d < problem_.value_size; ++d) {
        state.values[d] = (i == 0 ? 0.0f : state.values[d]) + values[d] * scale;
      }
    }
    FinishRow(problem_, first, r, state);
  }
}

}  // namespace npu::attention
