// A move-only `void()` with inline storage: what a launch enqueues. Closures of up to
// kInlineBytes cost no allocation.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace npu {

class Task {
 public:
  static constexpr size_t kInlineBytes = 448;

  Task() = default;
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, Task>>>
  Task(F&& f) {  // NOLINT: a task is made from any closure
    using Fn = std::decay_t<F>;
    if constexpr (sizeof(Fn) <= kInlineBytes && alignof(Fn) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Fn>) {
      new (storage_) Fn(std::forward<F>(f));
      ops_ = &kInlineOps<Fn>;
    } else {
      *reinterpret_cast<Fn**>(storage_) = new Fn(std::forward<F>(f));
      ops_ = &kHeapOps<Fn>;
    }
  }
  Task(Task&& o) noexcept { MoveFrom(o); }
  Task& operator=(Task&& o) noexcept {
    if (this != &o) {
      Reset();
      MoveFrom(o);
    }
    return *this;
  }
  ~Task() { Reset(); }

  void operator()() { ops_->call(storage_); }
  explicit operator bool() const { return ops_ != nullptr; }
  void Reset() {
    if (ops_) ops_->destroy(storage_);
    ops_ = nullptr;
  }

 private:
  struct Ops {
    void (*call)(void*);
    void (*move)(void* to, void* from);
    void (*destroy)(void*);
  };
  template <class Fn>
  static constexpr Ops kInlineOps{[](void* p) { (*static_cast<Fn*>(p))(); },
                                  [](void* to, void* from) {
                                    new (to) Fn(std::move(*static_cast<Fn*>(from)));
                                    static_cast<Fn*>(from)->~Fn();
                                  },
                                  [](void* p) { static_cast<Fn*>(p)->~Fn(); }};
  template <class Fn>
  static constexpr Ops kHeapOps{[](void* p) { (**static_cast<Fn**>(p))(); },
                                [](void* to, void* from) { *static_cast<Fn**>(to) = *static_cast<Fn**>(from); },
                                [](void* p) { delete *static_cast<Fn**>(p); }};
  void MoveFrom(Task& o) noexcept {
    ops_ = o.ops_;
    if (ops_) ops_->move(storage_, o.storage_);
    o.ops_ = nullptr;
  }

  const Ops* ops_ = nullptr;
  alignas(std::max_align_t) unsigned char storage_[kInlineBytes];
};

}  // namespace npu
