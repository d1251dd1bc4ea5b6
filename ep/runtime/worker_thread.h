// Threads of the runtime itself.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace npu {

// A thread that the process's signal handlers never run on: an interrupt must reach the host program's
// own threads. `name` shows in debuggers and in top (at most 15 characters).
std::thread StartWorkerThread(const std::string& name, std::function<void()> body);

// True in a process that was forked after the first worker thread started: the child has none of the threads.
bool InForkedChild();
// Throws Error(kUnsupported) there. To be called before a lock that one of the threads may hold.
void RefuseForkedChild();

}  // namespace npu
