// npu_advance_step_flashattn(input_tokens, sampled_token_ids, input_positions, seq_lens, slot_mapping, block_tables,
// spec_token?, accepted_num?; num_seqs, num_queries, block_size) -> input_tokens, input_positions, seq_lens,
// slot_mapping. The semantics are in npu_advance_step_flashattn.py.
#include "contrib_ops/attention/npu_advance_step_flashattn.h"

#include <limits>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {
namespace {

using In = nodes::NPUAdvanceStepFlashattn::In;
using Out = nodes::NPUAdvanceStepFlashattn::Out;

constexpr const char* kOp = "npu_advance_step_flashattn";

// Sums and products of the caller's values, which wrap on overflow.
int64_t Wrap(uint64_t value) { return static_cast<int64_t>(value); }

struct Task {
  const int64_t *sampled, *old_positions, *old_lengths, *tables, *spec, *accepted;
  int64_t *tokens, *positions, *lengths, *slots;  // null: not requested
  int64_t seqs, queries, per_seq, block_size, blocks;
  bool speculative;  // spec may have no elements and a null address

  void Run() const {
    CheckPositions();
    if (speculative) {
      for (int64_t i = 0; i < seqs; ++i) AdvanceSpeculative(i);
    } else {
      for (int64_t i = 0; i < seqs; ++i) Advance(i);
    }
  }

 private:
  // Runs before anything is written, so that a refused call changes nothing.
  void CheckPositions() const {
    const int64_t count = speculative ? seqs * per_seq : queries;
    for (int64_t i = 0; i < count; ++i) CheckPosition(speculative ? Moved(i) : ReadOnce(old_lengths + i));
  }

  void CheckPosition(int64_t position) const {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    const int64_t limit = blocks > kMost / block_size ? kMost : blocks * block_size;
    NPU_OP_CHECK(kOp, position >= 0 && position < limit, "expected positions in [0, ", limit,
                 "), the blocks of block_tables, got ", position);
  }

  int64_t Moved(int64_t token) const {
    return Wrap(static_cast<uint64_t>(ReadOnce(old_positions + token)) +
                static_cast<uint64_t>(ReadOnce(accepted + token / per_seq)) + 1u);
  }

  // Checks again: a result that shares memory with accepted_num changes positions after CheckPositions.
  int64_t Slot(int64_t seq, int64_t position) const {
    CheckPosition(position);
    const uint64_t block = static_cast<uint64_t>(tables[seq * blocks + position / block_size]);
    return Wrap(block * static_cast<uint64_t>(block_size) + static_cast<uint64_t>(position % block_size));
  }

  // Outputs may alias inputs: a token's old values are read before its new ones are written.
  void Write(int64_t token, int64_t id, int64_t position, int64_t length, int64_t slot) const {
    if (tokens) tokens[token] = id;
    if (positions) positions[token] = position;
    if (lengths) lengths[token] = length;
    if (slots) slots[token] = slot;
  }

  void Advance(int64_t i) const {
    const int64_t length = ReadOnce(old_lengths + i);
    if (i < queries) {
      Write(i, sampled[i], length, length + 1, Slot(i, length));
    } else {
      Write(i, 0, 0, length, -1);
    }
  }

  void AdvanceSpeculative(int64_t seq) const {
    const int64_t* row = sampled + seq * per_seq;
    int64_t last = per_seq - 1;
    while (last > 0 && row[last] < 0) --last;
    if (row[last] < 0) last = per_seq - 1;
    for (int64_t j = 0; j < per_seq; ++j) {
      const int64_t token = seq * per_seq + j, position = Moved(token);
      Write(token, j == 0 ? row[last] : spec[seq * (per_seq - 1) + j - 1], position, position + 1, Slot(seq, position));
    }
  }
};

class AdvanceStepKernel final : public Kernel {
 public:
  explicit AdvanceStepKernel(const KernelInfo& info)
      : seqs_(info.attributes.Int("num_seqs")),
        queries_(info.attributes.Int("num_queries")),
        block_size_(info.attributes.Int("block_size")) {
    NPU_OP_CHECK(kOp, seqs_ > 0, "expected num_seqs > 0, got ", seqs_);
    NPU_OP_CHECK(kOp, queries_ > 0 && queries_ <= seqs_, "expected num_queries in [1, ", seqs_, "], got ", queries_);
    NPU_OP_CHECK(kOp, block_size_ > 0, "expected block_size > 0, got ", block_size_);
  }

  void Compute(OpContext& ctx) const override {
    const TensorView tokens = ctx.Input(In::input_tokens), sampled = ctx.Input(In::sampled_token_ids),
                     positions = ctx.Input(In::input_positions), lengths = ctx.Input(In::seq_lens);
    const TensorView slots = ctx.Input(In::slot_mapping), tables = ctx.Input(In::block_tables),
                     spec = ctx.Input(In::spec_token), accepted = ctx.Input(In::accepted_num);
    NPU_OP_CHECK(kOp, static_cast<bool>(spec) == static_cast<bool>(accepted),
                 "expected spec_token and accepted_num both or neither");
    NPU_OP_CHECK(kOp, !spec || (spec.shape.rank() == 2 && spec.shape[0] == seqs_), "expected spec_token of shape [",
                 seqs_, ", k], got ", spec.shape);
    const int64_t per_seq = spec ? spec.shape[1] + 1 : 1;
    const Shape shape{Shape{seqs_, per_seq}.Elements()};
    Expect("input_tokens", tokens, shape);
    Expect("input_positions", positions, shape);
    Expect("seq_lens", lengths, shape);
    Expect("slot_mapping", slots, shape);
    Expect("sampled_token_ids", sampled, Shape{spec ? seqs_ : queries_, per_seq});
    if (accepted) Expect("accepted_num", accepted, Shape{seqs_});
    NPU_OP_CHECK(
        kOp,
        tables.dtype == DType::kInt64 && tables.shape.rank() == 2 && tables.shape[0] == seqs_ && tables.shape[1] > 0,
        "expected block_tables of shape [", seqs_, ", blocks], got ", tables.shape);

    const auto output = [&](size_t i) { return ctx.Output(i, DType::kInt64, shape).as<int64_t>(); };
    Task task{sampled.as<int64_t>(),
              positions.as<int64_t>(),
              lengths.as<int64_t>(),
              tables.as<int64_t>(),
              spec.as<int64_t>(),
              accepted.as<int64_t>(),
              output(Out::input_tokens_out),
              output(Out::input_positions_out),
              output(Out::seq_lens_out),
              output(Out::slot_mapping_out),
              seqs_,
              queries_,
              per_seq,
              block_size_,
              tables.shape[1],
              static_cast<bool>(spec)};
    ctx.Launch(kOp, [task] { task.Run(); });
  }

 private:
  static void Expect(const char* name, const TensorView& t, const Shape& shape) {
    NPU_OP_CHECK(kOp, t && t.dtype == DType::kInt64 && t.shape == shape, "expected ", name, " of shape ", shape,
                 ", got ", t.shape);
  }

  int64_t seqs_, queries_, block_size_;
};

NPU_KERNEL(NPUAdvanceStepFlashattn, AdvanceStepKernel);

}  // namespace
}  // namespace npu
