// npu_moe_init_routing_v2(x, expert_idx, scale, offset; ..) -> expanded_x, expanded_row_idx, expert_tokens,
// expanded_scale. The semantics are in npu_moe_init_routing_v2.py.
#include "contrib_ops/moe/npu_moe_init_routing_v2.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ep/kernels/moe/expert_order.h"
#include "ep/kernels/moe/rows.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/quantization/quantized_row.h"
#include "ep/kernels/quantization/rounding.h"
#include "ep/kernels/quantization/smooth_rows.h"
#include "ep/kernels/quantization/type_code.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUMoeInitRoutingV2::In;
using Out = nodes::NPUMoeInitRoutingV2::Out;

constexpr const char* kOp = "npu_moe_init_routing_v2";

enum class Quantisation : int64_t { kNone = -1, kStatic = 0, kDynamic = 1, kDynamicInt4 = 13 };
enum class Histogram : int64_t { kCumulative = 0, kCounts = 1, kPairs = 2 };

// Where a row of expanded_x comes from; a row of zeros has no token.
struct Source {
  int64_t token = -1, expert = 0;
};

// Results that the caller has no use for are null.
struct Task {
  TensorView x, scale, offset;
  const int32_t* experts;
  char* expanded_x;
  int32_t* row_idx;
  int64_t* histogram;
  float* expanded_scale;
  uint32_t* keys;
  int32_t* order;
  int64_t* starts;  // where the rows of each expert begin among the sorted ones, and where the last one's end
  void* scratch;
  Quantisation quantisation;
  Histogram histogram_form;
  bool shows_histogram, pads, gathers;
  int64_t slots, rows, first, count;  // experts in [first, first + count)
  int64_t capacity, expanded_rows, pairs, width;

  void Run() const {
    Sort();
    if (row_idx != nullptr) SetRowIndices();
    if (histogram != nullptr) SetHistogram();
    if (quantisation == Quantisation::kNone) {
      Move();
    } else if (expanded_rows > 0) {
      Quantise();
    }
  }

 private:
  void Sort() const {
    ParallelFor(rows, kSerialElements, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t expert = experts[i] - first;
        keys[i] = static_cast<uint32_t>(expert >= 0 && expert < count ? expert : count);
      }
    });
    OrderRows(keys, rows, static_cast<uint32_t>(count), order, scratch);
    ParallelFor(count + 1, 256, [this](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        const auto before = [this, e](int32_t row) { return keys[row] < e; };
        starts[e] = std::partition_point(order, order + rows, before) - order;
      }
    });
  }

  int64_t active() const { return starts[count]; }

  void SetRowIndices() const {
    ParallelFor(rows, kSerialElements, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!gathers) {
          row_idx[i] = i < active() ? order[i] : -1;
          continue;
        }
        int64_t place = i < active() ? i : -1;
        if (pads && place >= 0) {
          const int64_t expert = keys[order[i]], slot = i - starts[expert];
          place = slot < capacity ? expert * capacity + slot : -1;
        }
        row_idx[order[i]] = static_cast<int32_t>(place);
      }
    });
  }

  void SetHistogram() const {
    std::fill_n(histogram, histogram_form == Histogram::kPairs ? 2 * pairs : count, int64_t{0});
    if (!shows_histogram) return;
    int64_t* next = histogram;
    for (int64_t e = 0; e < count; ++e) {
      const int64_t own = starts[e + 1] - starts[e];
      if (histogram_form != Histogram::kPairs) {
        histogram[e] = histogram_form == Histogram::kCounts ? own : starts[e + 1];
      } else if (own > 0) {
        *next++ = first + e;
        *next++ = own;
      }
    }
  }

  Source SourceOf(int64_t row) const {
    int64_t place = row;
    if (pads) {
      const int64_t expert = row / capacity;
      place = starts[expert] + row % capacity;
      if (place >= starts[expert + 1]) return {};
    } else if (place >= active()) {
      return {};
    }
    return {order[place] / slots, keys[order[place]]};
  }

  void Move() const {
    const auto row_bytes = static_cast<int64_t>(BytesFor(x.dtype, width));
    if (expanded_x != nullptr)
      GatherRows(x.data, expanded_rows, row_bytes, expanded_x,
                 [task = this](int64_t row) { return task->SourceOf(row).token; });
    if (expanded_scale == nullptr) return;
    for (int64_t row = 0; row < expanded_rows; ++row) {
      const int64_t token = scale ? SourceOf(row).token : -1;
      expanded_scale[row] = token < 0 ? 0.0f : scale.as<float>()[token];
    }
  }

  QuantizedType type() const {
    return quantisation == Quantisation::kDynamicInt4 ? QuantizedType::kInt4 : QuantizedType::kInt8;
  }

  void Quantise() const {
    const int64_t row_bytes = BytesOf(type(), width);
    ParallelFor(expanded_rows, RowGrain(width), [this, row_bytes](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        char* to = expanded_x == nullptr ? nullptr : expanded_x + row * row_bytes;
        const Source source = SourceOf(row);
        float made = 0.0f;
        if (source.token < 0) {
          if (to != nullptr) std::fill_n(to, row_bytes, char{0});
        } else if (quantisation == Quantisation::kStatic) {
          if (to != nullptr) QuantiseByGiven(source.token, reinterpret_cast<int8_t*>(to));
        } else {
          made = QuantiseByOwn(source, to);
        }
        if (expanded_scale != nullptr) expanded_scale[row] = made;
      }
    });
  }

  static float Half(float value) { return ToFloat(FromFloat<Float16>(value)); }

  // Every operation is rounded to float16.
  void QuantiseByGiven(int64_t token, int8_t* to) const {
    const float factor = Half(*scale.as<float>()), addend = offset ? Half(*offset.as<float>()) : 0.0f;
    FloatBlock block;
    alignas(64) Float16 halves[kRowBlock];
    alignas(64) float values[kRowBlock];
    const auto round = [&](int64_t n) {
      FromFloat(values, halves, n);
      ToFloat(halves, values, n);
    };
    ForEachBlock(width, [&](int64_t at, int64_t n) {
      const float* from = block.Load(x, token * width + at, n);
      std::copy(from, from + n, values);
      round(n);
      for (int64_t i = 0; i < n; ++i) values[i] *= factor;
      round(n);
      for (int64_t i = 0; i < n; ++i) values[i] += addend;
      round(n);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[at + i] = static_cast<int8_t>(RoundSaturated(values[i], -128.0f, 127.0f));
    });
  }

  // Returns the scale that it takes from the row.
  float QuantiseByOwn(const Source& source, char* to) const {
    SmoothRows values(x, scale, width, scale && scale.shape[0] != 1 ? source.expert : 0);
    const bool is_int4 = type() == QuantizedType::kInt4;
    const float made = ScaleOfRow(values, source.token, width, is_int4 ? 7.0f : 127.0f), zero = 0.0f;
    if (to == nullptr) return made;
    const auto quantise = [&](const float* from, void* out, int64_t n) {
      QuantizeBlock(QuantizeBy::kDivisionRoundedAtEnd, type(), from, {&made, false}, {&zero, false}, out, n);
    };
    alignas(64) float padded[kRowBlock];
    alignas(64) char words[kRowBlock / 2];
    ForEachBlock(width, [&](int64_t at, int64_t n) {
      const float* from = values.Load(source.token, at, n);
      if (!is_int4) return quantise(from, to + at, n);
      // int4 is packed by eight, which a row of bytes neither is aligned to nor has to end with.
      const int64_t whole = (n + 7) / 8 * 8;
      std::copy(from, from + n, padded);
      std::fill(padded + n, padded + whole, 0.0f);
      quantise(padded, words, whole);
      std::copy_n(words, n / 2, to + at / 2);
    });
    return made;
  }
};

class MoeInitRoutingV2Kernel final : public Kernel {
 public:
  explicit MoeInitRoutingV2Kernel(const KernelInfo& info)
      : active_num_(info.attributes.Int("active_num")),
        capacity_(info.attributes.Int("expert_capacity")),
        expert_num_(info.attributes.Int("expert_num")),
        pad_mode_(info.attributes.Int("drop_pad_mode")),
        histogram_(info.attributes.Int("expert_tokens_num_type")),
        shows_histogram_(info.attributes.Bool("expert_tokens_num_flag")),
        quant_mode_(info.attributes.Int("quant_mode")),
        range_(info.attributes.Ints("active_expert_range")),
        row_idx_type_(info.attributes.Int("row_idx_type")),
        is_int4_(info.attributes.Has("x_dtype")) {
    if (is_int4_)
      QuantizedTypeOf(kOp, "x_dtype", info.attributes.Int("x_dtype"), {{TypeCode::kInt4, QuantizedType::kInt4}});
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), experts = ctx.Input(In::expert_idx);
    NPU_OP_CHECK(kOp, x && experts, "expected the tensors x and expert_idx");
    NPU_OP_CHECK(kOp, x.shape.rank() == 2, "expected x [T, H], got ", x.shape);
    const int64_t tokens = x.shape[0];
    NPU_OP_CHECK(kOp, experts.shape.rank() == 2 && experts.shape[0] == tokens && experts.shape[1] >= 1,
                 "expected expert_idx [", tokens, ", K] with K >= 1, got ", experts.shape);
    Task task{};
    task.rows = experts.elements();
    CheckRowCount(kOp, task.rows);
    CheckModes(x);
    SetExperts(task);
    NPU_OP_CHECK(kOp, pad_mode_ == 0 || (capacity_ >= 1 && capacity_ <= tokens), "expected expert_capacity in [1, ",
                 tokens, "] with drop_pad_mode 1, got ", capacity_);
    if (pad_mode_ == 1) CheckRowCount(kOp, task.count * capacity_);
    task.x = x;
    task.scale = ctx.Input(In::scale);
    task.offset = ctx.Input(In::offset);
    task.experts = experts.as<int32_t>();
    task.slots = experts.shape[1];
    task.width = x.shape[1];
    task.quantisation = static_cast<Quantisation>(quant_mode_);
    task.pads = pad_mode_ == 1;
    task.capacity = capacity_;
    task.gathers = row_idx_type_ == 0;
    task.shows_histogram = shows_histogram_;
    task.histogram_form = task.pads ? Histogram::kCounts : static_cast<Histogram>(histogram_);
    task.pairs = expert_num_;
    CheckQuantisation(task);
    AllocateResults(ctx, task);
    task.keys = static_cast<uint32_t*>(ctx.Workspace(BytesFor(DType::kUInt32, task.rows)));
    task.order = static_cast<int32_t*>(ctx.Workspace(BytesFor(DType::kInt32, task.rows)));
    task.starts = static_cast<int64_t*>(ctx.Workspace(BytesFor(DType::kInt64, task.count + 1)));
    task.scratch = ctx.Workspace(OrderScratchBytes(task.rows));
    ctx.Launch(kOp, [task] { task.Run(); });
  }

 private:
  void CheckModes(const TensorView& x) const {
    NPU_OP_CHECK(kOp, pad_mode_ == 0 || pad_mode_ == 1, "expected drop_pad_mode 0 or 1, got ", pad_mode_);
    NPU_OP_CHECK(kOp, histogram_ >= 0 && histogram_ <= 2, "expected expert_tokens_num_type 0, 1 or 2, got ",
                 histogram_);
    NPU_OP_CHECK(kOp, row_idx_type_ == 0 || row_idx_type_ == 1, "expected row_idx_type 0 or 1, got ", row_idx_type_);
    NPU_OP_CHECK(kOp, (quant_mode_ >= -1 && quant_mode_ <= 1) || quant_mode_ == 13,
                 "expected quant_mode -1, 0, 1 or 13, got ", quant_mode_);
    NPU_OP_CHECK(kOp, !is_int4_ || quant_mode_ == 13,
                 "expected quant_mode=13 for x_dtype int4, got quant_mode=", quant_mode_);
    NPU_OP_CHECK(kOp, x.dtype != DType::kInt8 || quant_mode_ == -1, "expected quant_mode -1 for x of int8, got ",
                 quant_mode_);
    NPU_OP_CHECK(kOp, active_num_ >= -1, "expected active_num >= -1, got ", active_num_);
  }

  void SetExperts(Task& task) const {
    NPU_OP_CHECK(kOp, expert_num_ == -1 || (expert_num_ >= 1 && expert_num_ <= kMaxExperts),
                 "expected expert_num in [1, ", kMaxExperts, "], or -1, got ", expert_num_);
    NPU_OP_CHECK(kOp, expert_num_ != -1 || (!range_.empty() && pad_mode_ == 0 && histogram_ != 2),
                 "expected expert_num without active_expert_range, with drop_pad_mode 1 or with "
                 "expert_tokens_num_type 2, got -1");
    const int64_t limit = expert_num_ == -1 ? kMaxExperts : expert_num_;
    const bool given = range_.size() == 2;
    const int64_t start = given ? range_[0] : 0, end = given ? range_[1] : limit;
    const Shape shown(range_.data(), std::min<size_t>(range_.size(), Shape::kMaxRank));
    NPU_OP_CHECK(kOp, (given || range_.empty()) && 0 <= start && start < end && end <= limit,
                 "expected active_expert_range [] or an ascending range within [0, ", limit, "], got ", shown);
    NPU_OP_CHECK(kOp, pad_mode_ == 0 || (start == 0 && end == limit), "expected active_expert_range [] or [0, ", limit,
                 "] with drop_pad_mode 1, got ", shown);
    task.first = start;
    task.count = end - start;
  }

  void CheckQuantisation(const Task& task) const {
    const TensorView &x = task.x, &scale = task.scale, &offset = task.offset;
    const int64_t tokens = x.shape[0], width = task.width;
    NPU_OP_CHECK(kOp, quant_mode_ < 1 || width > 0, "expected x with features to take a scale from, got ", x.shape);
    NPU_OP_CHECK(kOp, quant_mode_ != 13 || width % 2 == 0, "expected x with an even number of features for int4, got ",
                 x.shape);
    NPU_OP_CHECK(kOp, quant_mode_ != 0 || scale, "expected scale with quant_mode 0");
    const auto none = [tokens](const TensorView& tensor) { return tokens == 0 && tensor.shape == Shape{0}; };
    if (scale && !none(scale)) {
      const Shape shape = quant_mode_ == -1 ? Shape{tokens} : quant_mode_ == 0 ? Shape{1} : Shape{1, width};
      const Shape of_experts{task.count, width};
      const bool takes_experts = quant_mode_ == 1;
      NPU_OP_CHECK(kOp, scale.shape == shape || (takes_experts && scale.shape == of_experts), "expected scale ", shape,
                   takes_experts ? " or " + of_experts.ToString() : std::string(), " with quant_mode ", quant_mode_,
                   ", got ", scale.shape);
    }
    NPU_OP_CHECK(kOp, !offset || quant_mode_ == 0, "expected no offset with quant_mode ", quant_mode_, ", got one");
    NPU_OP_CHECK(kOp, !offset || offset.shape == Shape{1} || none(offset), "expected offset [1], got ", offset.shape);
  }

  void AllocateResults(OpContext& ctx, Task& task) const {
    const int64_t capped = active_num_ > 0 ? std::min(active_num_, task.rows) : task.rows;
    task.expanded_rows = task.pads ? task.count * capacity_ : capped;
    const bool is_int4 = quant_mode_ == 13;
    const int64_t width = is_int4 ? task.width / 2 : task.width;
    const DType dtype = quant_mode_ == -1 ? task.x.dtype : is_int4 ? DType::kUInt8 : DType::kInt8;
    const Shape shape = task.pads ? Shape{task.count, capacity_, width} : Shape{capped, width};
    task.expanded_x = ctx.Output(Out::expanded_x, dtype, shape).as<char>();
    task.row_idx = ctx.Output(Out::expanded_row_idx, DType::kInt32, {task.rows}).as<int32_t>();
    const Shape counts = task.histogram_form == Histogram::kPairs ? Shape{expert_num_, 2} : Shape{task.count};
    task.histogram = ctx.Output(Out::expert_tokens, DType::kInt64, counts).as<int64_t>();
    task.expanded_scale = ctx.Output(Out::expanded_scale, DType::kFloat32, {task.expanded_rows}).as<float>();
  }

  int64_t active_num_, capacity_, expert_num_, pad_mode_, histogram_;
  bool shows_histogram_;
  int64_t quant_mode_;
  std::vector<int64_t> range_;
  int64_t row_idx_type_;
  bool is_int4_;
};

NPU_KERNEL(NPUMoeInitRoutingV2, MoeInitRoutingV2Kernel);

}  // namespace
}  // namespace npu
