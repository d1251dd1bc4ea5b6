#include "ep/runtime/task.h"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <utility>

namespace npu {
namespace {

// Counts the live copies of itself.
struct Counted {
  explicit Counted(int& live) : live_(&live) { ++*live_; }
  Counted(const Counted& o) : live_(o.live_) { ++*live_; }
  Counted(Counted&& o) noexcept : live_(o.live_) { ++*live_; }
  ~Counted() { --*live_; }
  int* live_;
};

template <size_t kBytes>
void CheckLifetime() {
  int live = 0, calls = 0;
  {
    Task task([counted = Counted(live), padding = std::array<char, kBytes>{}, &calls]() mutable {
      ++padding[0];
      calls += padding[0];
    });
    CHECK(live == 1);
    Task moved(std::move(task));
    CHECK(!task);
    CHECK(static_cast<bool>(moved));
    CHECK(live == 1);
    moved();
    moved();  // the closure keeps its state
    Task assigned([] {});
    assigned = std::move(moved);
    CHECK(live == 1);
    assigned();
  }
  CHECK(calls == 1 + 2 + 3);
  CHECK(live == 0);
}

}  // namespace

TEST_CASE("a small closure is stored inside the task") { CheckLifetime<64>(); }

TEST_CASE("a closure too large for the task is stored on the heap") { CheckLifetime<Task::kInlineBytes + 1>(); }

TEST_CASE("a task can hold a move-only closure, and Reset destroys it") {
  auto value = std::make_unique<int>(7);
  int seen = 0;
  Task task([value = std::move(value), &seen] { seen = *value; });
  task();
  CHECK(seen == 7);
  task.Reset();
  CHECK(!task);
}

}  // namespace npu
