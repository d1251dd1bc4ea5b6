#include "ep/runtime/worker_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <system_error>
#include <utility>

#include "ep/runtime/error.h"

namespace npu {
namespace {

std::atomic<bool> in_forked_child{false};

void WatchForks() {
  static const int watching = pthread_atfork(nullptr, nullptr, [] { in_forked_child.store(true); });
  (void)watching;
}

}  // namespace

bool InForkedChild() { return in_forked_child.load(std::memory_order_relaxed); }

void RefuseForkedChild() {
  if (InForkedChild()) [[unlikely]]
    Fail(ErrorCode::kUnsupported,
         "the NPU cannot be used in a process that was forked after the NPU was first used; start processes with "
         "'spawn' instead of 'fork'");
}

std::thread StartWorkerThread(const std::string& name, std::function<void()> body) {
  WatchForks();
  // A new thread inherits the mask, so it is set around the start. Faults stay deliverable.
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& e) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    Fail(ErrorCode::kInternal, "could not start the thread ", name, ": ", e.what(), "; raise the limit of threads");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  return thread;
}

}  // namespace npu
