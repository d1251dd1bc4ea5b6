// npu_fused_causal_conv1d(x, weight, conv_states, query_start_loc?, cache_indices?, initial_state_mode?, bias?,
// num_accepted_tokens?, num_computed_tokens?, block_idx_first_scheduled_token?, block_idx_last_scheduled_token?,
// initial_state_idx?; activation, pad_slot_id, run_mode, residual_connection, max_query_len, block_size, conv_mode) ->
// y, conv_states_out. The semantics are in npu_fused_causal_conv1d.py.
#include "contrib_ops/convolution/npu_fused_causal_conv1d.h"

#include <algorithm>
#include <string>
#include <vector>

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/convolution/causal_conv1d_plan.h"
#include "ep/kernels/float_vector.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/output_or_room.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/segments.h"

namespace npu {
namespace {

using namespace causal_conv1d;  // NOLINT
using In = nodes::NPUFusedCausalConv1d::In;
using Out = nodes::NPUFusedCausalConv1d::Out;

constexpr int64_t kTokenBlock = 64;  // tokens of a sequence that one task convolves, or as many as the history
constexpr int kUnrolled = 4;         // tokens that share what is loaded of their windows

// sums[r][c] = bias[c] + the sum over k of weight[k][c] * windows[k + r][c] for kRows tokens, in float32. kTaps of 0
// stands for any number of taps.
template <int kTaps, int kRows, class T>
void Convolve(const T* const* windows, const T* weight, int64_t taps, int64_t stride, const T* bias, float* const* sums,
              int64_t n) {
  const int64_t count = kTaps > 0 ? kTaps : taps;
  int64_t c = 0;
  for (; c + simd::kLanes <= n; c += simd::kLanes) {
    const simd::Vec begin = bias == nullptr ? simd::Vec{} : simd::LoadFloats(bias + c);
    simd::Vec sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = begin;
#pragma GCC unroll 4
    for (int64_t k = 0; k < count; ++k) {
      const simd::Vec w = simd::LoadFloats(weight + k * stride + c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r] += w * simd::LoadFloats(windows[k + r] + c);
    }
    for (int r = 0; r < kRows; ++r) simd::Store(sums[r] + c, sum[r]);
  }
  for (; c < n; ++c) {
    for (int r = 0; r < kRows; ++r) {
      float sum = bias == nullptr ? 0.0f : ToFloat(bias[c]);
      for (int64_t k = 0; k < count; ++k) sum += ToFloat(weight[k * stride + c]) * ToFloat(windows[k + r][c]);
      sums[r][c] = sum;
    }
  }
}

template <int kRows, class T>
void ConvolveTaps(const T* const* windows, const T* weight, int64_t taps, int64_t stride, const T* bias,
                  float* const* sums, int64_t n) {
  if (taps == 3) return Convolve<3, kRows>(windows, weight, taps, stride, bias, sums, n);
  if (taps == 4) return Convolve<4, kRows>(windows, weight, taps, stride, bias, sums, n);
  Convolve<0, kRows>(windows, weight, taps, stride, bias, sums, n);
}

// All tensors of a call. A task is a block of channels of a block of a sequence's tokens; that of its first tokens also
// stores its states, after it has read them.
template <class T>
struct Call {
  Sizes sizes;
  Options options;
  const T *x, *weight, *bias;  // bias may be null
  T *states, *y;

  const T* Token(int64_t t, int64_t channel) const { return x + t * sizes.channels + channel; }
  T* Entry(int64_t row, int64_t entry, int64_t channel) const {
    return states + (row * sizes.entries + entry) * sizes.channels + channel;
  }
  void Run(const std::vector<Sequence>& sequences) const;
  void FillOtherTokens(const std::vector<Sequence>& sequences) const;
};

// The memory that tasks of one thread use.
template <class T>
class Task {
 public:
  explicit Task(const Call<T>& call) : call_(call) {}

  void Run(const Sequence& sequence, int64_t token, int64_t tokens, int64_t channel, int64_t channels) {
    if (token == 0) KeepState(sequence, channel, channels);
    const int64_t history = call_.sizes.history();
    windows_.resize(static_cast<size_t>(history + tokens));
    for (int64_t i = 0; i < history + tokens; ++i)
      windows_[static_cast<size_t>(i)] = Padded(sequence, sequence.offset + token + i, channel);
    const T* const* const windows = windows_.data();
    int64_t i = 0;
    for (; i + kUnrolled <= tokens; i += kUnrolled)
      Rows<kUnrolled>(sequence, windows + i, token + i, channel, channels);
    for (; i < tokens; ++i) Rows<1>(sequence, windows + i, token + i, channel, channels);
    if (token == 0) StoreStates(sequence, channel, channels);
  }

 private:
  template <int kRows>
  void Rows(const Sequence& sequence, const T* const* windows, int64_t token, int64_t channel, int64_t channels) {
    const Sizes& sizes = call_.sizes;
    float* sums[kRows];
    T* results[kRows];
    for (int r = 0; r < kRows; ++r) {
      results[r] = call_.y + (sequence.begin + token + r) * sizes.channels + channel;
      sums[r] = out_[r].Values(results[r]);
    }
    const T* const bias = call_.bias == nullptr ? nullptr : call_.bias + channel;
    ConvolveTaps<kRows>(windows, call_.weight + channel, sizes.taps, sizes.channels, bias, sums, channels);
    for (int r = 0; r < kRows; ++r) {
      float* const values = sums[r];
      if (call_.options.silu) Activate(values, channels);
      if (token + r < sequence.reset) std::fill_n(values, channels, 0.0f);
      if (call_.options.residual) {
        const float* const x = in_.Load(call_.Token(sequence.begin + token + r, channel), channels);
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) values[c] += x[c];
      }
      out_[r].Commit(results[r], channels);
    }
  }

  static void Activate(float* values, int64_t n) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      if constexpr (std::is_same_v<T, float>) {
        values[c] = Silu(values[c]);
      } else {
        values[c] = RoughSilu(values[c]);
      }
    }
  }

  // Copies what is needed of the state, since storing overwrites it.
  void KeepState(const Sequence& sequence, int64_t channel, int64_t channels) {
    const int64_t held = sequence.offset + call_.sizes.history();
    kept_from_ = std::min(sequence.offset, std::max<int64_t>(0, held + sequence.count - call_.sizes.entries));
    kept_.resize(static_cast<size_t>((held - kept_from_) * kRowBlock));
    for (int64_t i = kept_from_; i < held; ++i) {
      T* const to = kept_.data() + (i - kept_from_) * kRowBlock;
      if (sequence.row < 0)
        std::fill_n(to, channels, T{});
      else
        std::copy_n(call_.Entry(sequence.row, i, channel), channels, to);
    }
  }

  // Entry i of the state followed by the sequence's tokens.
  const T* Padded(const Sequence& sequence, int64_t i, int64_t channel) const {
    const int64_t held = sequence.offset + call_.sizes.history();
    return i < held ? kept_.data() + (i - kept_from_) * kRowBlock : call_.Token(sequence.begin + i - held, channel);
  }

  void StoreStates(const Sequence& sequence, int64_t channel, int64_t channels) const {
    const int64_t entries = call_.sizes.entries, history = call_.sizes.history();
    const auto store = [&](int64_t row, int64_t end, int64_t count) {  // entries of Padded before `end`
      for (int64_t i = 0; i < count; ++i)
        std::copy_n(Padded(sequence, end - count + i, channel), channels,
                    call_.Entry(row, entries - count + i, channel));
    };
    const int64_t held = sequence.offset + history;
    for (const Store& ended : sequence.ended) store(ended.row, held + ended.tokens, history);
    const int64_t end = held + sequence.count;
    if (sequence.last_row >= 0) store(sequence.last_row, end, std::min(entries, end));
  }

  const Call<T>& call_;
  std::vector<const T*> windows_;
  std::vector<T> kept_;
  int64_t kept_from_ = 0;
  InBlock<T> in_;
  OutBlock<T> out_[kUnrolled];
};

template <class T>
void Call<T>::Run(const std::vector<Sequence>& sequences) const {
  FillOtherTokens(sequences);
  // Only the first block of a sequence reads its state, which it then overwrites.
  const int64_t token_block = std::max(kTokenBlock, sizes.history());
  std::vector<int64_t> blocks_before;  // blocks of tokens of the sequences before each
  int64_t blocks = 0, longest = 0;
  for (const Sequence& sequence : sequences) {
    blocks_before.push_back(blocks);
    blocks += (sequence.count + token_block - 1) / token_block;
    longest = std::max(longest, sequence.count);
  }
  const int64_t parts = (sizes.channels + kRowBlock - 1) / kRowBlock;
  const int64_t grain = RowGrain(std::min(token_block, longest) * std::min(kRowBlock, sizes.channels));
  ParallelFor(parts * blocks, grain, [&](int64_t begin, int64_t end) {
    Task<T> task(*this);
    for (int64_t i = begin; i < end; ++i) {
      // Blocks of tokens follow each other, since all read the same weights.
      const int64_t block = i % blocks, channel = i / blocks * kRowBlock;
      const auto after = std::upper_bound(blocks_before.begin(), blocks_before.end(), block);
      const auto at = static_cast<size_t>(after - blocks_before.begin() - 1);
      const int64_t token = (block - blocks_before[at]) * token_block;
      task.Run(sequences[at], token, std::min(token_block, sequences[at].count - token), channel,
               std::min(kRowBlock, sizes.channels - channel));
    }
  });
}

template <class T>
void Call<T>::FillOtherTokens(const std::vector<Sequence>& sequences) const {
  int64_t done = 0;
  const auto fill = [&](int64_t end) { std::fill(y + done * sizes.channels, y + end * sizes.channels, T{}); };
  for (const Sequence& sequence : sequences) {
    fill(sequence.begin);
    done = sequence.begin + sequence.count;
  }
  fill(sizes.tokens);
}

class FusedCausalConv1dKernel final : public Kernel {
 public:
  explicit FusedCausalConv1dKernel(const KernelInfo& info)
      : activation_(info.attributes.String("activation")),
        conv_mode_(info.attributes.String("conv_mode")),
        run_mode_(info.attributes.Int("run_mode")),
        residual_(info.attributes.Int("residual_connection")),
        pad_(info.attributes.Int("pad_slot_id")),
        block_size_(info.attributes.Int("block_size")) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(In::x), weight = ctx.Input(In::weight), states = ctx.Input(In::conv_states),
                     bias = ctx.Input(In::bias);
    const Numbers numbers{ctx.Input(In::query_start_loc),
                          ctx.Input(In::cache_indices),
                          ctx.Input(In::initial_state_mode),
                          ctx.Input(In::num_accepted_tokens),
                          ctx.Input(In::num_computed_tokens),
                          ctx.Input(In::block_idx_first_scheduled_token),
                          ctx.Input(In::block_idx_last_scheduled_token),
                          ctx.Input(In::initial_state_idx)};
    CheckTensors(x, weight, states, bias);
    CheckOptions();
    const Sizes sizes = CheckNumbers(x, weight, states, numbers);
    const Options options{activation_ != "None", residual_ == 1, conv_mode_ == "pangu", pad_, block_size_};
    const TensorView y = OutputOrRoom(ctx, Out::y, x.dtype, x.shape);
    const TensorView updated = OutputOrRoom(ctx, Out::conv_states_out, states.dtype, states.shape);
    DispatchFloats(kOp, x.dtype, [&](auto tag) {
      using T = decltype(tag);
      const T* const bias_or_null = bias ? bias.as<const T>() : nullptr;
      const Call<T> call{sizes,        options,         x.as<const T>(), weight.as<const T>(),
                         bias_or_null, updated.as<T>(), y.as<T>()};
      ctx.Launch(kOp, [call, numbers, states, updated] {
        const Plan plan(call.sizes, call.options, numbers);
        if (updated.data != states.data) CopyBytes(states.data, updated.data, static_cast<int64_t>(states.bytes()));
        call.Run(plan.sequences());
      });
    });
  }

 private:
  static void CheckTensors(const TensorView& x, const TensorView& weight, const TensorView& states,
                           const TensorView& bias) {
    NPU_OP_CHECK(kOp, x && (x.shape.rank() == 2 || x.shape.rank() == 3),
                 "expected x of shape [T, C] or [B, L, C], got ", x.shape);
    const int64_t channels = x.shape.back();
    NPU_OP_CHECK(kOp, weight && weight.shape.rank() == 2 && weight.shape[0] >= 1 && weight.shape[1] == channels,
                 "expected weight of shape [K, ", channels, "] with K >= 1, got ", weight.shape);
    const int64_t history = weight.shape[0] - 1;
    NPU_OP_CHECK(kOp, states && states.shape.rank() == 3 && states.shape[1] >= history && states.shape[2] == channels,
                 "expected conv_states of shape [rows, ", history, " or more, ", channels, "], got ", states.shape);
    NPU_OP_CHECK(kOp, !bias || bias.shape == Shape{channels}, "expected bias [", channels, "], got ", bias.shape);
    const auto check = [&](const char* name, const TensorView& tensor) {
      NPU_OP_CHECK(kOp, !tensor || tensor.dtype == x.dtype, "expected ", name, " of x's dtype ", NameOf(x.dtype),
                   ", got ", NameOf(tensor.dtype));
    };
    check("weight", weight);
    check("conv_states", states);
    check("bias", bias);
  }

  void CheckOptions() const {
    NPU_OP_CHECK(kOp, activation_ == "None" || activation_ == "silu" || activation_ == "swish",
                 "expected activation None, silu or swish, got ", activation_);
    NPU_OP_CHECK(kOp, run_mode_ == 0 || run_mode_ == 1, "expected run_mode 0 or 1, got ", run_mode_);
    NPU_OP_CHECK(kOp, residual_ == 0 || residual_ == 1, "expected residual_connection 0 or 1, got ", residual_);
    NPU_OP_CHECK(kOp, conv_mode_ == "default" || conv_mode_ == "pangu", "expected conv_mode default or pangu, got ",
                 conv_mode_);
  }

  Sizes CheckNumbers(const TensorView& x, const TensorView& weight, const TensorView& states, const Numbers& in) const {
    const bool batch = x.shape.rank() == 3;
    NPU_OP_CHECK(kOp, in.starts || batch, "expected query_start_loc with x of shape [T, C], got none");
    int64_t sequences = x.shape[0];
    if (batch) {
      NPU_OP_CHECK(kOp, !in.starts || in.starts.shape == Shape{sequences + 1}, "expected query_start_loc of shape [",
                   sequences + 1, "], got ", in.starts.shape);
    } else {
      NPU_OP_CHECK(kOp, in.starts.shape.rank() == 1 && in.starts.shape[0] >= 1,
                   "expected query_start_loc of shape [B + 1], got ", in.starts.shape);
      sequences = in.starts.shape[0] - 1;
    }
    const auto check = [&](const char* name, const TensorView& tensor) {
      NPU_OP_CHECK(kOp, !tensor || tensor.shape == Shape{sequences}, "expected ", name, " of shape [", sequences,
                   "], got ", tensor.shape);
    };
    check("initial_state_mode", in.modes);
    check("num_accepted_tokens", in.accepted);
    check("num_computed_tokens", in.computed);
    check("block_idx_first_scheduled_token", in.first);
    check("block_idx_last_scheduled_token", in.last);
    check("initial_state_idx", in.initial);
    CheckBlocks(in);
    if (in.initial) {
      NPU_OP_CHECK(kOp, in.rows.shape.rank() == 2 && in.rows.shape[0] == sequences, "expected cache_indices of shape [",
                   sequences, ", blocks], got ", in.rows.shape);
      NPU_OP_CHECK(kOp, block_size_ >= 2, "expected block_size of at least 2, got ", block_size_);
    } else {
      check("cache_indices", in.rows);
      NPU_OP_CHECK(kOp, in.rows || states.shape[0] >= sequences, "expected conv_states of at least ", sequences,
                   " rows without cache_indices, got ", states.shape[0]);
    }
    NPU_OP_CHECK(kOp, conv_mode_ == "default" || in.computed, "expected num_computed_tokens with conv_mode ",
                 conv_mode_, ", got none");
    return {batch ? x.shape[0] * x.shape[1] : x.shape[0],
            x.shape.back(),
            weight.shape[0],
            states.shape[0],
            states.shape[1],
            sequences,
            batch ? x.shape[1] : 0};
  }

  static void CheckBlocks(const Numbers& in) {
    std::string given;
    int count = 0;
    for (const auto& [name, tensor] :
         {std::pair("block_idx_first_scheduled_token", in.first), std::pair("block_idx_last_scheduled_token", in.last),
          std::pair("initial_state_idx", in.initial)}) {
      if (!tensor) continue;
      given += (count++ > 0 ? ", " : "") + std::string(name);
    }
    NPU_OP_CHECK(kOp, count == 0 || count == 3,
                 "expected none or all of block_idx_first_scheduled_token, block_idx_last_scheduled_token, "
                 "initial_state_idx, got ",
                 given);
    NPU_OP_CHECK(kOp, count == 0 || (in.rows && in.computed),
                 "expected cache_indices and num_computed_tokens with block_idx_first_scheduled_token, got none");
  }

  std::string activation_, conv_mode_;
  int64_t run_mode_, residual_, pad_, block_size_;
};

NPU_KERNEL(NPUFusedCausalConv1d, FusedCausalConv1dKernel);

}  // namespace
}  // namespace npu
