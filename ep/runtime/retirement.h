// What goes while work in flight still needs it: kept until that work is over, and nobody waits.
#pragma once

#include <functional>
#include <vector>

#include "ep/runtime/backend.h"

namespace npu {

// Calls `release` once, when all of `events` have passed, which it takes and destroys: at once if they have, else on a
// thread of the runtime's own. `release` must not throw or wait for the device. In a forked child nothing is done.
// Made for destructors: where no thread can be had, it waits itself.
void Retire(Backend& backend, std::vector<BackendEvent*> events, std::function<void()> release) noexcept;

// The same behind what `streams` have queued. Where no event can be had, it waits itself.
void RetireAfter(Backend& backend, const std::vector<BackendStream*>& streams, std::function<void()> release) noexcept;

// Waits until nothing of this backend is left to release: before the backend goes.
void FinishRetirements(const Backend& backend);

}  // namespace npu
