#include "ep/runtime/worker_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "ep/runtime/error.h"

namespace npu {

std::thread StartWorkerThread(const std::string& name, std::function<void()> body) {
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
