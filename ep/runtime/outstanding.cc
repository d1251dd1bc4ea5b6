#include "ep/runtime/outstanding.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/stream.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

struct Work {
  const Device* device;
  std::shared_ptr<const Event> done;
  std::vector<uint64_t> joined;  // ids of streams that are ordered behind it

  bool Over() const { return device->backend().EventQuery(done->handle()); }
  Status status() const { return device->backend().EventStatus(done->handle()); }
  bool Succeeded() const { return Over() && status() == nullptr; }
};

// Work of all threads, for waits that cover a whole device.
struct Everybodys {
  std::mutex mutex;
  std::vector<std::pair<const Device*, std::weak_ptr<const Event>>> work;
  std::vector<Work> orphaned;  // its thread has ended: the next such wait reports its failure
};
Everybodys& Everybody() {
  static auto& everybody = *new Everybodys;
  return everybody;
}

struct Mine {
  std::vector<Work> work;

  ~Mine() {
    std::erase_if(work, [](const Work& each) { return each.Succeeded(); });
    if (work.empty() || InForkedChild()) return;
    std::lock_guard lock(Everybody().mutex);
    auto& orphaned = Everybody().orphaned;
    std::erase_if(orphaned, [](const Work& each) { return each.Succeeded(); });
    std::move(work.begin(), work.end(), std::back_inserter(orphaned));
  }
};
thread_local Mine mine_of_thread;
std::vector<Work>& MyWork() { return mine_of_thread.work; }

}  // namespace

thread_local bool Outstanding::any_ = false;

void Outstanding::Add(const Device& device, std::shared_ptr<const Event> done) {
  // Work that succeeded needs no ordering any more.
  std::vector<Work>& mine = MyWork();
  std::erase_if(mine, [](const Work& work) { return work.Succeeded(); });
  {
    std::lock_guard lock(Everybody().mutex);
    std::erase_if(Everybody().work, [](const auto& entry) { return entry.second.expired(); });
    Everybody().work.emplace_back(&device, done);
  }
  mine.push_back({&device, std::move(done), {}});
  any_ = true;
}

void Outstanding::Join(Stream& stream) {
  std::vector<Work>& mine = MyWork();
  for (auto work = mine.begin(); work != mine.end();) {
    const bool here = work->device == &stream.device();
    if (work->Succeeded()) {
      work = mine.erase(work);
      continue;
    }
    if (here && std::find(work->joined.begin(), work->joined.end(), stream.id()) == work->joined.end()) {
      stream.device().backend().StreamWaitEvent(stream.handle(), work->done->handle());
      work->joined.push_back(stream.id());
    }
    ++work;
  }
  any_ = !mine.empty();
}

std::vector<std::shared_ptr<const Event>> Outstanding::Of(const Device& device) {
  std::vector<std::shared_ptr<const Event>> events;
  for (const Work& work : MyWork())
    if (work.device == &device && !work.Succeeded()) events.push_back(work.done);
  return events;
}

void Outstanding::Wait(const Device& device, Failures& failures) {
  std::vector<Work>& mine = MyWork();
  for (const Work& work : mine)
    if (work.device == &device) failures.Add(device.backend().EventSynchronize(work.done->handle()));
  std::erase_if(mine, [&](const Work& work) { return work.device == &device; });
  any_ = !mine.empty();
}

void Outstanding::WaitForAll(const Device& device, Failures& failures) {
  std::vector<std::shared_ptr<const Event>> events;
  {
    std::lock_guard lock(Everybody().mutex);
    std::erase_if(Everybody().orphaned, [&](const Work& work) {
      if (work.device != &device) return false;
      events.push_back(work.done);
      return true;
    });
    for (const auto& [where, event] : Everybody().work) {
      auto kept = where == &device ? event.lock() : nullptr;
      if (kept != nullptr) events.push_back(std::move(kept));
    }
  }
  for (const auto& event : events) failures.Add(device.backend().EventSynchronize(event->handle()));
}

}  // namespace npu
