// npu_top_k_top_p(logits, p?, k?) -> y. The semantics are in npu_top_k_top_p.py.
#include "contrib_ops/sampling/npu_top_k_top_p.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/ordered_key.h"
#include "ep/kernels/row_block.h"
#include "ep/kernels/vector_math.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUTopKTopP::In;
using Out = nodes::NPUTopKTopP::Out;

constexpr const char* kOp = "npu_top_k_top_p";

struct Candidate {
  int32_t key;
  float weight;  // e^(logit - max)
};

// What is removed from a row: every logit below `key`, and the first `equal` of those equal to it.
struct Cut {
  int32_t key = std::numeric_limits<int32_t>::min();
  int64_t equal = 0;
};

// The cut that removes as many of the smallest candidates as weigh at most `mass` together, but never all of them.
// Partitions around pivots instead of sorting: on average each candidate is visited a few times.
Cut CutByMass(Candidate* begin, Candidate* end, double mass) {
  double below = 0.0;   // weight of all candidates smaller than those in [begin, end)
  bool is_last = true;  // [begin, end) contains the maximum
  Cut cut;
  while (begin < end) {
    const int32_t first = begin->key, middle = begin[(end - begin) / 2].key, last = end[-1].key;
    const int32_t pivot = std::max(std::min(first, middle), std::min(std::max(first, middle), last));
    Candidate* const less = std::partition(begin, end, [&](const Candidate& c) { return c.key < pivot; });
    double weight = 0.0;
    for (const Candidate* c = begin; c < less; ++c) weight += c->weight;
    if (below + weight > mass) {
      end = less;
      is_last = false;
      continue;
    }
    below += weight;
    Candidate* const greater = std::partition(less, end, [&](const Candidate& c) { return c.key == pivot; });
    cut = {pivot, 0};
    for (int64_t left = greater - less; left > 0 && below + less->weight <= mass; --left) {
      if (is_last && greater == end && left == 1) return cut;
      below += less->weight;
      ++cut.equal;
    }
    if (cut.equal < greater - less) return cut;
    begin = greater;
  }
  return cut;
}

template <class T>
struct Task {
  const T *logits, *p;
  const int32_t* kept;
  T* y;
  Candidate* scratch;  // `vocabulary` of them for each of `lanes`
  int64_t batch, vocabulary, lanes;

  void Run() const {
    // All arguments are checked before anything is written.
    if (kept != nullptr) k().CheckFirst(batch);
    for (int64_t b = 0; b < batch; ++b) {
      NPU_OP_CHECK(kOp, p == nullptr || (ToFloat(p[b]) >= 0.0f && ToFloat(p[b]) <= 1.0f), "expected p in [0, 1], got ",
                   ToFloat(p[b]));
    }
    ParallelFor(lanes, batch * vocabulary < kSerialElements ? lanes : 1, [&](int64_t begin, int64_t end) {
      for (int64_t lane = begin; lane < end; ++lane)
        for (int64_t b = lane; b < batch; b += lanes) Row(b, scratch + lane * vocabulary);
    });
  }

 private:
  CheckedNumbers<int32_t> k() const { return {kOp, "k", kept, 1, vocabulary + 1}; }

  void Row(int64_t b, Candidate* candidates) const {
    const T* row = logits + b * vocabulary;
    Candidate* end = candidates + vocabulary;
    for (int64_t i = 0; i < vocabulary; ++i) candidates[i].key = OrderedKey(ToFloat(row[i]));
    Cut cut;
    if (const int64_t most = kept == nullptr ? vocabulary : k()[b]; most < vocabulary) {
      const auto less = [](const Candidate& x, const Candidate& y) { return x.key < y.key; };
      std::nth_element(candidates, end - most, end, less);
      // A NaN threshold removes nothing: every comparison with it is false.
      if (end[-most].key != kNanKey) {
        cut.key = end[-most].key;
        end = std::partition(candidates, end, [&](const Candidate& c) { return c.key >= cut.key; });
      }
    }
    if (p != nullptr) {
      // 1 - p is rounded to p's dtype, as in the reference.
      const double rest = ToFloat(FromFloat<T>(1.0f - ToFloat(p[b])));
      const double total = Weigh(candidates, end);
      // Logits that contain NaN or +inf, or are all -inf, have no distribution to cut.
      if (!std::isnan(total)) {
        const Cut by_mass = CutByMass(candidates, end, rest * total);
        if (by_mass.key > cut.key || by_mass.equal > 0) cut = by_mass;
      }
    }
    T* out = y + b * vocabulary;
    const T removed = FromFloat<T>(-std::numeric_limits<float>::infinity());
    int64_t equal = cut.equal;
    for (int64_t i = 0; i < vocabulary; ++i) {
      const int32_t key = OrderedKey(ToFloat(row[i]));
      const bool remove = key < cut.key || (key == cut.key && equal-- > 0);
      out[i] = remove ? removed : row[i];
    }
  }

  // Fills the weights; returns their sum, which is NaN where softmax is.
  static double Weigh(Candidate* begin, Candidate* end) {
    int32_t largest = std::numeric_limits<int32_t>::min();
    for (const Candidate* c = begin; c < end; ++c) largest = std::max(largest, c->key);
    const float center = FloatOfKey(largest);
    double total = 0.0;
    for (Candidate* c = begin; c < end; ++c) {
      c->weight = math::Exp(FloatOfKey(c->key) - center);
      total += c->weight;
    }
    return total;
  }
};

class TopKTopPKernel final : public Kernel {
 public:
  explicit TopKTopPKernel(const KernelInfo&) {}

  void Compute(OpContext& ctx) const override {
    const TensorView logits = ctx.Input(In::logits), p = ctx.Input(In::p), k = ctx.Input(In::k);
    NPU_OP_CHECK(kOp, logits, "expected the tensor logits");
    NPU_OP_CHECK(kOp, logits.shape.rank() == 2, "expected logits of shape [B, V], got ", logits.shape);
    NPU_OP_CHECK(kOp, p || k, "expected p or k, which say what is removed, got neither");
    const Shape rows{logits.shape[0]};
    NPU_OP_CHECK(kOp, !p || (p.shape == rows && p.dtype == logits.dtype), "expected p of shape ", rows, " and ",
                 NameOf(logits.dtype), ", logits' dtype, got ", p.shape, " and ", NameOf(p.dtype));
    NPU_OP_CHECK(kOp, !k || (k.shape == rows && k.dtype == DType::kInt32), "expected k of shape ", rows,
                 " and int32, got ", k.shape, " and ", NameOf(k.dtype));
    const TensorView y = ctx.Output(Out::y, logits.dtype, logits.shape);
    if (logits.elements() == 0) return;
    const int64_t batch = logits.shape[0], vocabulary = logits.shape[1];
    const int64_t lanes = std::min<int64_t>(batch, NumThreads());
    auto* scratch = static_cast<Candidate*>(
        ctx.Workspace(static_cast<size_t>((Shape{lanes, vocabulary}).Elements()) * sizeof(Candidate)));
    DispatchFloats(kOp, logits.dtype, [&](auto tag) {
      using T = decltype(tag);
      const Task<T> task{logits.as<T>(), p.as<T>(), k.as<int32_t>(), y.as<T>(), scratch, batch, vocabulary, lanes};
      ctx.Launch(kOp, [task] { task.Run(); });
    });
  }
};

NPU_KERNEL(NPUTopKTopP, TopKTopPKernel);

}  // namespace
}  // namespace npu
