// The group of ranks that a call names.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "ep/kernels/op_check.h"
#include "ep/runtime/communicator.h"
#include "ep/runtime/kernel_api.h"
#include "ep/runtime/op_registry.h"
#include "ep/runtime/unknown_group.h"

namespace npu {

class RankGroup {
 public:
  RankGroup() = default;  // this rank alone
  // `world_size` is what the call states, or -1 if it states nothing.
  RankGroup(const char* op, std::string name, int64_t world_size)
      : op_(op), name_(std::move(name)), world_size_(world_size) {
    NPU_OP_CHECK(op, world_size == -1 || (world_size >= 1 && world_size <= kMostRanks),
                 "expected a world size from 1 to ", kMostRanks, ", got ", world_size);
    NPU_OP_CHECK(op, !name_.empty() || world_size <= 1, "expected the name of a group of ", world_size,
                 " ranks, got none");
  }
  // Attributes `group` and, unless it is null, `world_size`.
  RankGroup(const char* op, const KernelInfo& info, const char* group, const char* world_size)
      : RankGroup(op, info.attributes.String(group),
                  world_size ? StatedSize(op, info.attributes.Int(world_size)) : -1) {}

  // Null without a name: this rank alone. To be called by the thread that launches, in each call, because torch may
  // make another group of the name.
  std::shared_ptr<Communicator> Find(OpContext& ctx) const;

  static constexpr int64_t kMostRanks = 1024;

 private:
  static int64_t StatedSize(const char* op, int64_t size) {
    NPU_OP_CHECK(op, size >= 1, "expected a world size from 1 to ", kMostRanks, ", got ", size);
    return size;
  }

  const char* op_ = "";
  std::string name_;
  int64_t world_size_ = -1;
};

inline int64_t RanksOf(const std::shared_ptr<Communicator>& group) { return group ? group->size() : 1; }

// Makes a rank's checks of its own arguments, and returns what they return. If they fail, the other ranks fail, too, in
// the stream's order, instead of waiting for this one.
template <class F>
auto CheckForAll(OpContext& ctx, const char* op, const std::shared_ptr<Communicator>& group, F&& checks) {
  try {
    return checks();
  } catch (const Error& error) {
    if (RanksOf(group) > 1)
      ctx.Launch(op, [group, op, why = std::string(error.what())] {
        const auto turn = group->Turn();
        group->Refuse(op, why);
      });
    throw;
  }
}

// The same for checks of values, which the launch makes in its turn before it agrees with the others on the call; null
// stands for this rank alone.
template <class F>
auto CheckInTurn(const char* op, Communicator* group, F&& checks) {
  try {
    return checks();
  } catch (const Error& error) {
    if (group != nullptr) group->Refuse(op, error.what());
    throw;
  }
}

// The same for a call that names no group of this rank.
inline void LaunchRefusal(OpContext& ctx, const char* op, const Error& error) {
  if (Communicators::Several().empty()) return;
  ctx.Launch(op, [op, why = std::string(error.what())] { RefuseWhereAwaited(op, why); });
}

inline std::shared_ptr<Communicator> RankGroup::Find(OpContext& ctx) const {
  if (name_.empty()) return nullptr;
  std::shared_ptr<Communicator> group;
  try {
    group = Communicators::Find(op_, name_);
  } catch (const Error& error) {
    LaunchRefusal(ctx, op_, error);
    throw;
  }
  if (group->size() > 1) group->Connect(op_);
  CheckForAll(ctx, op_, group, [&] {
    NPU_OP_CHECK(op_, world_size_ == -1 || group->size() == world_size_, "expected a world size of ", group->size(),
                 ", which the group '", Printable(name_), "' has, got ", world_size_);
  });
  return group;
}

// Stands for a kernel whose attributes this rank refuses: its calls fail on all ranks.
class RefusingKernel final : public Kernel {
 public:
  RefusingKernel(const char* op, std::string group, Error error)
      : names_group_(!group.empty()), ranks_(op, std::move(group), -1), op_(op), error_(std::move(error)) {}
  void Compute(OpContext& ctx) const override {
    if (!names_group_) LaunchRefusal(ctx, op_, error_);
    CheckForAll(ctx, op_, ranks_.Find(ctx), [this] { throw error_; });
  }

 private:
  bool names_group_;
  RankGroup ranks_;
  const char* op_;
  Error error_;
};

// The number of ranks that a call states, which only the wrong ones do without a group; 1 if it states none.
inline int64_t StatedRanks(const Attributes& attributes) {
  for (const char* name : {"world_size", "ep_world_size"})
    if (attributes.Has(name)) return attributes.Int(name);
  return 1;
}

// The kernel of an operator whose attribute `group` names its ranks. If several ranks take part, refused attributes
// fail when a call is made, with the other ranks, which would wait for it. Otherwise a session is not made.
template <class K>
std::unique_ptr<Kernel> MakeRankKernel(const char* op, const char* group, const KernelInfo& info) {
  try {
    return MakeKernel<K>(info);
  } catch (const Error& error) {
    const bool eager = info.input_dtypes.empty();
    const std::string name = info.attributes.String(group);
    if ((name.empty() && StatedRanks(info.attributes) <= 1) || !(eager || Communicators::HasOthers(name))) throw;
    return std::make_unique<RefusingKernel>(op, name, error);
  }
}

#define NPU_RANK_KERNEL(type, Class, op, group)                                                                      \
  static const ::npu::Registrar NPU_CONCAT(npu_registrar_, __COUNTER__)([](::npu::OpRegistry& registry) {            \
    registry.AddKernel("npu", #type,                                                                                 \
                       [](const ::npu::KernelInfo& info) { return ::npu::MakeRankKernel<Class>(op, group, info); }); \
  })

}  // namespace npu
