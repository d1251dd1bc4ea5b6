// TfIdfVectorizer (ai.onnx 9) of integers: how often each n-gram of a pool is in a row, n items at one distance from
// each other, 1 to max_skip_count + 1.
#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"

namespace npu {
namespace {

constexpr const char* kOp = "TfIdfVectorizer";

// The n-grams of the pool as paths from a root, item after item.
class Ngrams {
 public:
  static constexpr size_t kRoot = 0;
  static constexpr int64_t kNone = -1;

  // The end of the path from `node` by `item`, made if it is not there.
  size_t Extend(size_t node, int64_t item) {
    const auto [next, is_new] = nodes_[node].next.try_emplace(item, nodes_.size());
    const size_t at = next->second;
    if (is_new) nodes_.emplace_back();
    return at;
  }
  void SetOutput(size_t node, int64_t output) { nodes_[node].output = output; }

  // False: no n-gram goes on so.
  bool Follow(size_t& node, int64_t item) const {
    const auto found = nodes_[node].next.find(item);
    if (found == nodes_[node].next.end()) return false;
    node = found->second;
    return true;
  }
  // Of the n-gram that ends here, or kNone.
  int64_t output(size_t node) const { return nodes_[node].output; }

 private:
  struct Node {
    std::unordered_map<int64_t, size_t> next = {};
    int64_t output = kNone;
  };
  std::vector<Node> nodes_{1};
};

class TfIdfVectorizer final : public Kernel {
 public:
  explicit TfIdfVectorizer(const KernelInfo& info)
      : mode_(info.attributes.String("mode")),
        skips_(info.attributes.Int("max_skip_count")),
        shortest_(info.attributes.Int("min_gram_length")),
        longest_(info.attributes.Int("max_gram_length")) {
    NPU_OP_CHECK(kOp, mode_ == "TF" || mode_ == "IDF" || mode_ == "TFIDF", "expected mode TF, IDF or TFIDF, got '",
                 mode_, "'");
    NPU_OP_CHECK(kOp, skips_ >= 0 && shortest_ >= 1 && longest_ >= shortest_,
                 "expected max_skip_count >= 0 and 1 <= min_gram_length <= max_gram_length, got ", skips_, ", ",
                 shortest_, ", ", longest_);
    const std::vector<int64_t> outputs = info.attributes.Ints("ngram_indexes");
    constexpr int64_t kMost = INT32_MAX;
    NPU_OP_CHECK(kOp, !outputs.empty(), "expected ngram_indexes, got none");
    for (const int64_t output : outputs) {
      NPU_OP_CHECK(kOp, output >= 0 && output < kMost, "expected ngram_indexes from 0 to ", kMost - 1, ", got ",
                   output);
      size_ = std::max(size_, output + 1);
    }
    ReadPool(info.attributes.Ints("pool_int64s"), info.attributes.Ints("ngram_counts"), outputs);
    const std::vector<double> weights = info.attributes.Floats("weights");
    NPU_OP_CHECK(kOp, weights.empty() || weights.size() == outputs.size(),
                 "expected as many weights as ngram_indexes, ", outputs.size(), ", got ", weights.size());
    weights_.assign(static_cast<size_t>(size_), 1.0f);
    for (size_t i = 0; i < weights.size(); ++i)
      weights_[static_cast<size_t>(outputs[i])] = static_cast<float>(weights[i]);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0);
    NPU_OP_CHECK(kOp, x.shape.rank() == 1 || x.shape.rank() == 2, "expected X [C] or [N, C], got shape ", x.shape);
    const int64_t rows = x.shape.rank() == 1 ? 1 : x.shape[0], columns = x.shape.back();
    const TensorView y = ctx.Output(0, DType::kFloat32, x.shape.rank() == 1 ? Shape{size_} : Shape{rows, size_});
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, Types<int32_t, int64_t>{}, [&](auto type) {
      using T = decltype(type);
      ctx.Launch(kOp, [this, rows, columns, from = x.as<const T>(), to = y.as<float>()] {
        ParallelFor(rows, 1, [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) Row(from + row * columns, columns, to + row * size_);
        });
      });
    });
  }

 private:
  // `counts`: where the n-grams of each length begin, from one item on.
  void ReadPool(const std::vector<int64_t>& pool, const std::vector<int64_t>& counts,
                const std::vector<int64_t>& outputs) {
    const auto size = static_cast<int64_t>(pool.size());
    NPU_OP_CHECK(kOp, static_cast<int64_t>(counts.size()) >= longest_, "expected ngram_counts of ", longest_,
                 " lengths, got ", counts.size());
    size_t ngram = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const int64_t begin = counts[i], end = i + 1 < counts.size() ? counts[i + 1] : size;
      const auto length = static_cast<int64_t>(i) + 1;
      NPU_OP_CHECK(kOp, begin >= 0 && begin <= end && end <= size && (end - begin) % length == 0,
                   "expected ngram_counts that divide pool_int64s of ", size, " into whole n-grams, got [", begin, ", ",
                   end, ") for those of ", length);
      for (int64_t at = begin; at < end; at += length, ++ngram) {
        NPU_OP_CHECK(kOp, ngram < outputs.size(), "expected one of ngram_indexes for each n-gram, got ",
                     outputs.size());
        if (length < shortest_ || length > longest_) continue;
        size_t node = Ngrams::kRoot;
        for (int64_t k = at; k < at + length; ++k) node = ngrams_.Extend(node, pool[static_cast<size_t>(k)]);
        ngrams_.SetOutput(node, outputs[ngram]);
      }
    }
    NPU_OP_CHECK(kOp, ngram == outputs.size(), "expected one of ngram_indexes for each of ", ngram, " n-grams, got ",
                 outputs.size());
  }

  template <class T>
  void Row(const T* x, int64_t columns, float* y) const {
    std::fill(y, y + size_, 0.0f);
    // A single item has no distance.
    const int64_t most = std::min(skips_, std::max<int64_t>(0, columns - 1)) + 1;
    for (int64_t distance = 1; distance <= most; ++distance)
      for (int64_t first = 0; first < columns; ++first) CountFrom(x, columns, first, distance, y);
    if (mode_ == "TF") return;
    for (int64_t i = 0; i < size_; ++i) y[i] = weights_[static_cast<size_t>(i)] * (mode_ == "IDF" ? y[i] > 0 : y[i]);
  }

  template <class T>
  void CountFrom(const T* x, int64_t columns, int64_t first, int64_t distance, float* y) const {
    size_t node = Ngrams::kRoot;
    for (int64_t at = first; at < columns && ngrams_.Follow(node, x[at]); at += distance) {
      const int64_t output = ngrams_.output(node);
      if (output != Ngrams::kNone && (at > first || distance == 1)) y[output] += 1;
    }
  }

  std::string mode_;
  int64_t skips_, shortest_, longest_, size_ = 0;
  Ngrams ngrams_;
  std::vector<float> weights_;  // of the outputs
};

AttrDef Required(const char* name, AttrDef::Kind kind) { return {.name = name, .kind = kind, .required = true}; }

NPU_ONNX_KERNEL({
    .type = kOp,
    .since = 9,
    .until = 9,
    .inputs = {Input("X", {DType::kInt32, DType::kInt64})},
    .outputs = {Output("Y", {DType::kFloat32})},
    .attributes = {Required("mode", AttrDef::Kind::kString),
                   RequiredInt("max_skip_count"),
                   RequiredInt("min_gram_length"),
                   RequiredInt("max_gram_length"),
                   Required("ngram_counts", AttrDef::Kind::kInts),
                   Required("ngram_indexes", AttrDef::Kind::kInts),
                   IntsAttribute("pool_int64s"),
                   FloatsAttribute("weights"),
                   {.name = "pool_strings", .kind = AttrDef::Kind::kStrings}},
    .make = MakeKernel<TfIdfVectorizer>,
    .unsupported = [](const NodeView& node) -> std::string {
      return node.attributes.Has("pool_strings") ? "n-grams of strings are not implemented" : "";
    },
});

}  // namespace
}  // namespace npu
