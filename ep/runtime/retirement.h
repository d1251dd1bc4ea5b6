// Releases objects when the work in flight that needs them is over, without waiting for it.
#pragma once

#include <functional>
#include <vector>

#include "ep/runtime/backend.h"

namespace npu {

// Calls `release` once, when all of `events` have passed: immediately if they have, else on a thread of the runtime's
// own. Takes and destroys the events. `release` must not throw or wait for the device. A no-op in a forked child. Made
// for destructors: if no thread can be started, it waits itself.
void Retire(Backend& backend, std::vector<BackendEvent*> events, std::function<void()> release) noexcept;

// The same behind the work queued on `streams`. If no event can be created, it waits itself.
void RetireAfter(Backend& backend, const std::vector<BackendStream*>& streams, std::function<void()> release) noexcept;

// Waits until nothing of this backend is left to release; to be called before the backend is destroyed.
void FinishRetirements(const Backend& backend);

}  // namespace npu
