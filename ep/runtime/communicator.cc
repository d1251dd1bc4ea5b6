#include "ep/runtime/communicator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "ep/runtime/error.h"

namespace npu {
namespace {

// What one rank tells the others of its call: the first bytes of its text, a number for the whole, and those of its own
// numbers that have room.
struct CallNote {
  uint64_t fingerprint = 0;
  std::array<char, 504> text{};
  std::array<int32_t, 128> numbers{};

  CallNote(const char* op, const std::string& call) {
    const std::string whole = Concat(op, ": ", call);
    for (const char byte : whole) fingerprint = (fingerprint ^ static_cast<unsigned char>(byte)) * 1099511628211u;
    std::memcpy(text.data(), whole.data(), std::min(whole.size(), text.size() - 1));
  }
  CallNote() = default;
  bool TellsTheSame(const CallNote& other) const { return fingerprint == other.fingerprint && text == other.text; }
  std::string said() const { return Printable({text.data(), strnlen(text.data(), text.size())}); }
};
static_assert(sizeof(CallNote) == 1024 && std::is_trivially_copyable_v<CallNote>);

struct KnownGroups {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Communicator>> by_name;

  static KnownGroups& Instance() {
    static auto& groups = *new KnownGroups;
    return groups;
  }
};

}  // namespace

template <class F>
void Communicator::Attempt(const char* op, F&& exchange) {
  const auto fail = [&](const std::string& why) {
    Fail(ErrorCode::kDeviceError, "[", op, "] on rank ", rank_, " of ", size_, " of the group '", Printable(group_),
         "': ", why, "; a group of another name can go on");
  };
  if (!lost_.empty()) fail("an earlier operator failed: " + lost_);
  try {
    exchange();
  } catch (const std::exception& error) {
    lost_ = Concat("[", op, "] ", error.what());
    fail(error.what());
  }
}

void Communicator::AllGather(const char* op, const void* sent, void* received, size_t bytes) {
  Attempt(op, [&] { GatherBytes(sent, received, bytes); });
}

void Communicator::AllToAll(const char* op, const void* sent, const std::vector<size_t>& sent_bytes, void* received,
                            const std::vector<size_t>& received_bytes) {
  Attempt(op, [&] { ExchangeBytes(sent, sent_bytes, received, received_bytes); });
}

void Communicator::Barrier(const char* op) { Agree(op, "barrier"); }

void Communicator::Agree(const char* op, const std::string& call) { AgreeOn(op, call, {}); }

std::vector<int32_t> Communicator::AgreeOn(const char* op, const std::string& call,
                                           const std::vector<int32_t>& numbers) {
  CallNote mine(op, call);
  const bool fit = numbers.size() <= mine.numbers.size();
  if (fit) std::copy(numbers.begin(), numbers.end(), mine.numbers.begin());
  std::vector<CallNote> notes(static_cast<size_t>(size_));
  AllGather(op, &mine, notes.data(), sizeof(CallNote));
  for (size_t rank = 1; rank < notes.size(); ++rank)
    NPU_CHECK(notes[rank].TellsTheSame(notes[0]), "[", op, "] expected the same call on all ranks of the group '",
              Printable(group_), "', got on rank 0 ", notes[0].said(), ", and on rank ", rank, " ", notes[rank].said());
  std::vector<int32_t> all(numbers.size() * notes.size());
  if (!fit) {
    AllGather(op, numbers.data(), all.data(), numbers.size() * sizeof(int32_t));
    return all;
  }
  for (size_t rank = 0; rank < notes.size(); ++rank)
    std::copy_n(notes[rank].numbers.begin(), numbers.size(),
                all.begin() + static_cast<std::ptrdiff_t>(rank * numbers.size()));
  return all;
}

void Communicator::Refuse(const char* op, const std::string& why) noexcept {
  try {
    Agree(op, "a refusal: " + why);
  } catch (const std::exception&) {
    // This rank reports its own error.
  }
}

void Communicators::Add(const std::shared_ptr<Communicator>& communicator) {
  KnownGroups& groups = KnownGroups::Instance();
  const std::lock_guard lock(groups.mutex);
  std::erase_if(groups.by_name, [](const auto& group) { return group.second.expired(); });
  groups.by_name[communicator->group()] = communicator;
}

std::shared_ptr<Communicator> Communicators::Find(const char* op, const std::string& group) {
  KnownGroups& groups = KnownGroups::Instance();
  const std::lock_guard lock(groups.mutex);
  const auto found = groups.by_name.find(group);
  std::shared_ptr<Communicator> communicator = found == groups.by_name.end() ? nullptr : found->second.lock();
  if (communicator == nullptr) {
    Fail(ErrorCode::kInvalidArgument, "[", op, "] expected the name of a group of this rank, got '", Printable(group),
         "'; see get_hccl_comm_name of torch's process group, or the provider option 'groups'");
  }
  return communicator;
}

bool Communicators::HasOthers(const std::string& group) {
  const std::vector<std::shared_ptr<Communicator>> several = Several();
  KnownGroups& groups = KnownGroups::Instance();
  const std::lock_guard lock(groups.mutex);
  const auto found = groups.by_name.find(group);
  if (found != groups.by_name.end())
    if (const std::shared_ptr<Communicator> known = found->second.lock()) return known->size() > 1;
  return !several.empty();
}

std::vector<std::shared_ptr<Communicator>> Communicators::Several() {
  KnownGroups& groups = KnownGroups::Instance();
  const std::lock_guard lock(groups.mutex);
  std::vector<std::shared_ptr<Communicator>> several;
  for (const auto& [name, known] : groups.by_name)
    if (std::shared_ptr<Communicator> group = known.lock(); group != nullptr && group->size() > 1)
      several.push_back(std::move(group));
  return several;
}

}  // namespace npu
