#include "ep/kernels/communication/dispatch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "ep/kernels/communication/unused_arguments.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/quantized_row.h"

namespace npu {
namespace {

constexpr int64_t kQuantised = 2;

// Zeros behind the first `count` of the elements along the first axis.
void ClearFrom(const TensorView& tensor, int64_t count) {
  if (!tensor || tensor.elements() == 0) return;
  const size_t used = tensor.bytes() / static_cast<size_t>(tensor.shape[0]) * static_cast<size_t>(count);
  std::memset(tensor.as<char>() + used, 0, tensor.bytes() - used);
}

}  // namespace

Dispatch::Dispatch(const char* op, bool second, const KernelInfo& info)
    : op_(op),
      second_(second),
      experts_(op, info),
      quant_mode_(info.attributes.Int("quant_mode")),
      form_(info.attributes.Int("expert_token_nums_type")),
      global_batch_(info.attributes.Int("global_bs")),
      reserved_(info.attributes.Int("tp_world_size")) {
  NPU_OP_CHECK(op, quant_mode_ == 0 || quant_mode_ == kQuantised, "expected quant_mode 0 or 2, got ", quant_mode_);
  NPU_OP_CHECK(op, form_ == 0 || form_ == 1, "expected expert_token_nums_type 0 or 1, got ", form_);
  for (const char* name : {"y_dtype", "x_dtype", "scales_dtype"}) CheckAbsent(op, info.attributes, name);
}

void Dispatch::Check(const Inputs& given) const {
  const auto& [x, ids, scales, mask, weights] = given;
  NPU_OP_CHECK(op_, x && x.shape.rank() == 2, "expected x [BS, H], got ", x.shape);
  experts_.CheckIds(op_, ids, mask, x.shape[0]);
  NPU_OP_CHECK(op_, quant_mode_ == 0 || (x.dtype != DType::kInt32 && x.shape[1] > 0),
               "expected x of floats, with features to take a scale from, with quant_mode 2, got ", NameOf(x.dtype),
               " ", x.shape);
  if (scales && x.dtype == DType::kInt32) {
    NPU_OP_CHECK(op_, scales.shape == Shape{x.shape[0]}, "expected scales ", Shape{x.shape[0]},
                 ", one of each token, with x of int32, got ", scales.shape);
  } else if (scales) {
    NPU_OP_CHECK(op_, quant_mode_ == kQuantised, "expected quant_mode 2 with scales, got ", quant_mode_);
    const Shape shape{experts_.shared() + experts_.routed(), x.shape[1]};
    NPU_OP_CHECK(op_, scales.shape == shape, "expected scales ", shape,
                 ", those of shared experts with ranks first, got ", scales.shape);
  }
  NPU_OP_CHECK(op_, !weights || weights.shape == ids.shape, "expected expert_scales like expert_ids, ", ids.shape,
               ", got ", weights.shape);
  experts_.MostRows(op_, experts_.MostTokens(op_, global_batch_, x.shape[0]), ids.shape[1]);
}

void Dispatch::Launch(OpContext& ctx, const std::shared_ptr<Communicator>& group, const Inputs& given) const {
  const int64_t tokens = given.ids.shape[0], slots = given.ids.shape[1];
  const int64_t most = experts_.MostTokens(op_, global_batch_, tokens), room = experts_.MostRows(op_, most, slots);
  const int64_t here = experts_.here();
  size_t next = 0;
  const auto result = [&](DType dtype, const Shape& shape) { return ctx.Output(next++, dtype, shape); };
  Results results;
  results.rows = result(quant_mode_ == kQuantised ? DType::kInt8 : given.x.dtype, {room, given.x.shape[1]});
  results.scales = result(DType::kFloat32, {room});
  results.notes = result(DType::kInt32, {second_ ? room * kRowNoteWords : tokens * slots});
  results.expert_rows = result(DType::kInt64, {here});
  results.ends = result(DType::kInt32, {here * experts_.ranks()});
  const TensorView reserved = result(DType::kInt32, {reserved_});
  results.weights = result(DType::kFloat32, {given.weights ? room : 0});
  ctx.Launch(op_, [this, given, results, reserved, most, room, group] {
    std::unique_lock<std::mutex> turn;
    Communicator* const others = RanksOf(group) > 1 ? group.get() : nullptr;
    if (others != nullptr) turn = others->Turn();
    ClearFrom(reserved, 0);
    Run(given, results, most, room, others);
  });
}

void Dispatch::Run(const Inputs& given, const Results& results, int64_t most, int64_t room, Communicator* group) const {
  const TokenSlots slots = CheckInTurn(op_, group, [&] { return TokenSlots(op_, experts_, given.ids, given.mask); });
  if (group != nullptr)
    group->Agree(op_, Concat(NameOf(given.x.dtype), " rows of ", given.x.shape[1], " elements, quant_mode ",
                             quant_mode_, ", for ", given.ids.shape[1], " of ", experts_.ToString(), ", at most ", most,
                             " tokens of each rank"));
  const std::vector<int64_t> received = ExchangeCounts(op_, group, slots.counts());
  const size_t row_bytes = BytesFor(quant_mode_ == kQuantised ? DType::kInt8 : given.x.dtype, given.x.shape[1]);
  const auto sent = static_cast<int64_t>(slots.rows().size());
  RowRecords leaving(sent, row_bytes);
  ParallelFor(sent, RowGrain(given.x.shape[1]), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      Pack(given, slots.rows()[static_cast<size_t>(i)], leaving.row(i), leaving.note(i));
  });
  const RowRecords arrived = ExchangeRows(op_, group, std::move(leaving), slots.counts(), received, row_bytes);
  SetCounts(received, results);
  SetRows(received, arrived, row_bytes, room, results);
  if (!second_ && results.notes) {
    const int64_t of_token = given.ids.shape[1];
    for (int64_t i = 0; i < results.notes.elements(); ++i)
      results.notes.as<int32_t>()[i] = slots.PlaceOf(i / of_token, i % of_token);
  }
}

void Dispatch::Pack(const Inputs& given, const TokenSlots::Row& row, char* to, RowNote& note) const {
  const int64_t width = given.x.shape[1];
  note = {0.0f, 1.0f, row.token, row.slot};
  if (given.weights && row.slot != TokenSlots::kShared)
    note.weight = given.weights.as<const float>()[row.token * given.ids.shape[1] + row.slot];
  if (quant_mode_ == kQuantised) {
    SmoothRows values(given.x, given.scales, width, given.scales ? row.expert : 0);
    note.scale = QuantizeRow(values, row.token, width, to);
    return;
  }
  if (given.scales) note.scale = given.scales.as<const float>()[row.token];
  if (const size_t bytes = BytesFor(given.x.dtype, width); bytes > 0)
    std::memcpy(to, given.x.as<const char>() + static_cast<size_t>(row.token) * bytes, bytes);
}

void Dispatch::SetCounts(const std::vector<int64_t>& received, const Results& results) const {
  int64_t end = 0, before = 0;
  ForEachExpertBlock(experts_, received, [&](int64_t expert, int64_t rank, int64_t, int64_t count, int64_t) {
    if (rank == 0) before = end;
    end += count;
    if (results.ends) results.ends.as<int32_t>()[expert * experts_.ranks() + rank] = static_cast<int32_t>(end);
    if (results.expert_rows) results.expert_rows.as<int64_t>()[expert] = form_ == 0 ? end : end - before;
  });
}

void Dispatch::SetRows(const std::vector<int64_t>& received, const RowRecords& arrived, size_t row_bytes, int64_t room,
                       const Results& results) const {
  int64_t used = 0;
  ForEachExpertBlock(experts_, received, [&](int64_t, int64_t rank, int64_t first, int64_t count, int64_t place) {
    // The others have refused to send more: memory is not left to them all the same.
    NPU_OP_CHECK(op_, place + count <= room, "expected at most ", room, " rows, got more from rank ", rank);
    for (int64_t i = 0; i < count; ++i) {
      const RowNote& note = arrived.note(first + i);
      const int64_t to = place + i;
      if (results.rows && row_bytes > 0)
        std::memcpy(results.rows.as<char>() + static_cast<size_t>(to) * row_bytes, arrived.row(first + i), row_bytes);
      if (results.scales) results.scales.as<float>()[to] = note.scale;
      if (results.weights && results.weights.elements() > 0) results.weights.as<float>()[to] = note.weight;
      if (!second_ || !results.notes) continue;
      int32_t* words = results.notes.as<int32_t>() + to * kRowNoteWords;
      std::fill_n(words, kRowNoteWords, 0);
      words[0] = static_cast<int32_t>(rank);
      words[1] = note.token;
      words[2] = note.slot;
    }
    used = place + count;
  });
  ClearFrom(results.rows, used);
  ClearFrom(results.scales, used);
  ClearFrom(results.weights, used);
  if (second_) ClearFrom(results.notes, used * kRowNoteWords);
}

}  // namespace npu
