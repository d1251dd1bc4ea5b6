#include "ep/kernels/communication/combine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantized_row.h"
#include "ep/kernels/row_block.h"

namespace npu {
namespace {

constexpr int64_t kQuantised = 2;

// Adds terms to a block of a token's sum.
class BlockSum {
 public:
  BlockSum(int64_t at, int64_t count) : at_(at), count_(count) { std::fill_n(sum_, count, 0.0f); }

  // weight * scale * the block of row `row` of a tensor.
  void Add(float weight, float scale, const TensorView& rows, int64_t row) {
    const float* from = block_.Load(rows, row * rows.shape.back() + at_, count_);
#pragma omp simd
    for (int64_t i = 0; i < count_; ++i) sum_[i] += weight * (scale * from[i]);
  }
  // weight * (alpha_1 * x + alpha_2 * v) of these rows.
  void AddConstant(float weight, const CombineInputs& given, int64_t token, int64_t expert) {
    FloatBlock alpha_1, alpha_2, constant;
    const int64_t at = expert * given.width() + at_;
    const float* x = block_.Load(given.original, token * given.width() + at_, count_);
    const float* a = alpha_1.Load(given.alpha_1, at, count_);
    const float* b = alpha_2.Load(given.alpha_2, at, count_);
    const float* v = constant.Load(given.constant, at, count_);
#pragma omp simd
    for (int64_t i = 0; i < count_; ++i) sum_[i] += weight * (a[i] * x[i] + b[i] * v[i]);
  }
  const float* values() const { return sum_; }

 private:
  int64_t at_, count_;
  FloatBlock block_;
  alignas(64) float sum_[kRowBlock];
};

}  // namespace

Combine::Combine(const char* op, const char* notes, bool of_rows, const KernelInfo& info)
    : op_(op), notes_(notes), of_rows_(of_rows), experts_(op, info), global_batch_(info.attributes.Int("global_bs")) {
  const int64_t mode = info.attributes.Int("comm_quant_mode");
  NPU_OP_CHECK(op, mode == 0 || mode == kQuantised, "expected comm_quant_mode 0 or 2, got ", mode);
  quantises_ = mode == kQuantised;
  for (const char* name : {"out_dtype", "group_list_type"})
    if (info.attributes.Has(name)) CheckUnused(op, info.attributes, name, 0);
}

void Combine::Check(const CombineInputs& given) const {
  const TensorView& rows = given.rows;
  NPU_OP_CHECK(op_, rows && rows.shape.rank() == 2, "expected expand_x [A, H], got ", rows.shape);
  experts_.CheckIds(op_, given.ids, given.mask, -1);
  experts_.MostTokens(op_, global_batch_, given.tokens());
  const auto check = [this](const char* name, const TensorView& tensor, const Shape& shape) {
    NPU_OP_CHECK(op_, tensor.shape == shape, "expected ", name, " ", shape, ", got ", tensor.shape);
  };
  const int64_t all = rows.shape[0], width = given.width();
  check(notes_, given.notes, {of_rows_ ? all * kRowNoteWords : given.tokens() * given.slots()});
  check("ep_send_counts", given.ends, {experts_.here() * experts_.ranks()});
  check("expert_scales", given.weights, given.ids.shape);
  if (given.carried && given.carried.shape != Shape{0}) check("expand_scales", given.carried, {all});
  if (given.shared) {
    const Shape& shape = given.shared.shape;
    const bool joined = shape.rank() == 3 && shape.Elements(0, 2) == given.tokens();
    CheckLike("shared_expert_x", given.shared, rows.dtype,
              joined ? Shape{shape[0], shape[1], width} : Shape{given.tokens(), width});
  }
  const int64_t constants = experts_.constants();
  NPU_OP_CHECK(op_, given.original || experts_.copies() + constants == 0,
               "expected ori_x with copy and constant experts, got none");
  if (given.original) CheckLike("ori_x", given.original, rows.dtype, {given.tokens(), width});
  for (const auto& [name, tensor] :
       {std::pair{"const_expert_alpha_1", &given.alpha_1}, std::pair{"const_expert_alpha_2", &given.alpha_2},
        std::pair{"const_expert_v", &given.constant}}) {
    NPU_OP_CHECK(op_, *tensor || constants == 0, "expected ", name, " with constant experts, got none");
    if (*tensor) CheckLike(name, *tensor, rows.dtype, {constants, width});
  }
}

void Combine::CheckLike(const char* name, const TensorView& tensor, DType dtype, const Shape& shape) const {
  NPU_OP_CHECK(op_, tensor.shape == shape && tensor.dtype == dtype, "expected ", name, " ", NameOf(dtype), " ", shape,
               ", got ", NameOf(tensor.dtype), " ", tensor.shape);
}

void Combine::Run(const CombineInputs& given, const std::shared_ptr<Communicator>& shared, void* sums) const {
  Communicator* const group = RanksOf(shared) > 1 ? shared.get() : nullptr;
  std::unique_lock<std::mutex> turn;
  if (group != nullptr) turn = group->Turn();
  std::vector<int64_t> counts;
  const TokenSlots slots = CheckInTurn(op_, group, [&] {
    TokenSlots made(op_, experts_, given.ids, given.mask);
    counts = CountsOf(given);
    of_rows_ ? CheckNotes(given, counts) : CheckPlaces(given, made);
    return made;
  });
  if (group != nullptr)
    group->Agree(op_, Concat(NameOf(given.rows.dtype), " rows of ", given.width(), " elements, comm_quant_mode ",
                             quantises_ ? kQuantised : 0, ", of ", given.slots(), " of ", experts_.ToString()));
  const std::vector<int64_t> expected = ExchangeCounts(op_, group, slots.counts());
  CheckInTurn(op_, group, [&] { CheckPairs(counts, expected); });
  if (group != nullptr) group->Agree(op_, "rows that add up");
  const size_t row_bytes = BytesFor(quantises_ ? DType::kInt8 : given.rows.dtype, given.width());
  const RowRecords arrived =
      ExchangeRows(op_, group, Pack(given, counts, row_bytes), counts, slots.counts(), row_bytes);
  if (of_rows_) CheckArrived(slots, arrived);
  const size_t bytes = BytesFor(given.rows.dtype, given.width());
  ParallelFor(given.tokens(), RowGrain(given.width() * given.slots()), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token)
      SumToken(given, slots, arrived, token, static_cast<char*>(sums) + static_cast<size_t>(token) * bytes);
  });
}

// How many rows each rank has sent for each of this rank's experts.
std::vector<int64_t> Combine::CountsOf(const CombineInputs& given) const {
  std::vector<int64_t> counts(static_cast<size_t>(experts_.ranks() * experts_.of_rank()));
  const int64_t all = given.rows.shape[0];
  int64_t before = 0;
  for (int64_t i = 0; i < given.ends.elements(); ++i) {
    const int64_t end = ReadOnce(given.ends.as<const int32_t>() + i);
    NPU_OP_CHECK(op_, end >= before && end <= all, "expected ep_send_counts that rise from 0 to at most ", all,
                 ", the rows of expand_x, got ", end, " after ", before);
    counts[static_cast<size_t>(i % experts_.ranks() * experts_.of_rank() + i / experts_.ranks())] = end - before;
    before = end;
  }
  return counts;
}

void Combine::CheckPlaces(const CombineInputs& given, const TokenSlots& slots) const {
  for (int64_t token = 0; token < given.tokens(); ++token) {
    for (int64_t slot = 0; slot < given.slots(); ++slot) {
      const int32_t place = given.notes.as<const int32_t>()[token * given.slots() + slot];
      const int32_t expected = slots.PlaceOf(token, slot);
      NPU_OP_CHECK(op_, place == expected, "expected ", notes_, " of the dispatch of these tokens, ", expected,
                   " for slot ", slot, " of token ", token, ", got ", place);
    }
  }
}

void Combine::CheckNotes(const CombineInputs& given, const std::vector<int64_t>& counts) const {
  ForEachExpertBlock(experts_, counts, [&](int64_t, int64_t rank, int64_t, int64_t count, int64_t place) {
    for (int64_t row = place; row < place + count; ++row) {
      const int32_t noted = given.notes.as<const int32_t>()[row * kRowNoteWords];
      NPU_OP_CHECK(op_, noted == rank, "expected ", notes_, " of the dispatch of these rows, rank ", rank, " for row ",
                   row, ", got ", noted);
    }
  });
}

void Combine::CheckPairs(const std::vector<int64_t>& counts, const std::vector<int64_t>& expected) const {
  for (int64_t rank = 0; rank < experts_.ranks(); ++rank) {
    for (int64_t expert = 0; expert < experts_.here(); ++expert) {
      const auto at = static_cast<size_t>(rank * experts_.of_rank() + expert);
      NPU_OP_CHECK(op_, counts[at] == expected[at], "expected ep_send_counts to return ", expected[at],
                   " rows of expert ", expert, " of this rank to rank ", rank, ", which has sent so many, got ",
                   counts[at]);
    }
  }
}

void Combine::CheckArrived(const TokenSlots& slots, const RowRecords& arrived) const {
  for (size_t i = 0; i < slots.rows().size(); ++i) {
    const TokenSlots::Row& row = slots.rows()[i];
    const RowNote& note = arrived.note(static_cast<int64_t>(i));
    NPU_OP_CHECK(op_, note.token == row.token && note.slot == row.slot, "expected expert_ids and ", notes_,
                 " of one dispatch, got for slot ", row.slot, " of token ", row.token, " the result of slot ",
                 note.slot, " of token ", note.token);
  }
}

RowRecords Combine::Pack(const CombineInputs& given, const std::vector<int64_t>& counts, size_t row_bytes) const {
  int64_t all = 0;
  for (const int64_t count : counts) all += count;
  RowRecords leaving(all, row_bytes);
  const TensorView plain;  // no scales to multiply by
  ForEachExpertBlock(experts_, counts, [&](int64_t, int64_t, int64_t first, int64_t count, int64_t place) {
    ParallelFor(count, RowGrain(given.width()), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        RowNote& note = leaving.note(first + i);
        note = {1.0f, 1.0f, 0, 0};
        if (of_rows_) {
          const int32_t* words = given.notes.as<const int32_t>() + (place + i) * kRowNoteWords;
          note.token = words[1];
          note.slot = words[2];
        }
        if (quantises_) {
          SmoothRows values(given.rows, plain, given.width(), 0);
          note.scale = QuantizeRow(values, place + i, given.width(), leaving.row(first + i));
        } else if (row_bytes > 0) {
          std::memcpy(leaving.row(first + i), given.rows.as<const char>() + static_cast<size_t>(place + i) * row_bytes,
                      row_bytes);
        }
      }
    });
  });
  return leaving;
}

// In the order of slots, then what is added without a weight. An inactive token gets zeros.
void Combine::SumToken(const CombineInputs& given, const TokenSlots& slots, const RowRecords& arrived, int64_t token,
                       void* to) const {
  const int64_t width = given.width();
  const auto result = [&](int64_t row) {
    return TensorView{arrived.row(row), quantises_ ? DType::kInt8 : given.rows.dtype, true, Shape{width}};
  };
  ForEachBlock(width, [&](int64_t at, int64_t n) {
    BlockSum sum(at, n);
    for (int64_t slot = 0; slot < given.slots() && slots.IsActive(token); ++slot) {
      const int64_t special = slots.ExpertOf(token, slot) - experts_.routed();
      const float weight = given.weights.as<const float>()[token * given.slots() + slot];
      const int64_t constant = special - experts_.zeros() - experts_.copies();
      if (const int64_t row = slots.RowOf(token, slot); row >= 0) {
        sum.Add(weight, arrived.note(row).scale, result(row), 0);
      } else if (slots.IsActive(token, slot) && constant >= 0) {
        sum.AddConstant(weight, given, token, constant);
      } else if (slots.IsActive(token, slot) && special >= experts_.zeros()) {
        sum.Add(weight, 1.0f, given.original, token);
      }
    }
    for (int64_t shared = 0; shared < experts_.shared() && slots.IsActive(token); ++shared) {
      const int64_t row = slots.RowOfShared(token, shared);
      sum.Add(1.0f, arrived.note(row).scale, result(row), 0);
    }
    if (given.shared && slots.IsActive(token)) sum.Add(1.0f, 1.0f, given.shared, token);
    DispatchFloats(op_, given.rows.dtype, [&](auto tag) {
      using T = decltype(tag);
      FromFloat(sum.values(), static_cast<T*>(to) + at, n);
    });
  });
}

}  // namespace npu
