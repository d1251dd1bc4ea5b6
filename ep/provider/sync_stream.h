// ORT's streams and notifications over the runtime's streams and events.
#pragma once

#include <functional>
#include <memory>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"

namespace npu::provider {

// Both are released by ORT through their Release function.
// A stream of a session: one of `runs`, or, where `graphs` is not null, theirs.
OrtSyncStreamImpl* NewSessionStream(const Api& api, std::shared_ptr<SessionRuns> runs,
                                    std::shared_ptr<SessionGraphs> graphs);
// A user's own. `on_release` is called once it has gone.
OrtSyncStreamImpl* NewUserStream(const Api& api, DeviceState& device, std::function<void()> on_release);

// The runtime's stream behind ORT's; null for ORT's own placeholder streams.
Stream* StreamOf(const Api& api, OrtSyncStream* stream);

}  // namespace npu::provider
