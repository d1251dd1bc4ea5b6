// ORT's streams and notifications on top of the runtime's streams and events.
#pragma once

#include <functional>
#include <memory>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"

namespace npu::provider {

// ORT releases both through their Release function.  A stream of a session: one of `runs`, or that of `graphs` if not
// null.
OrtSyncStreamImpl* NewSessionStream(const Api& api, std::shared_ptr<SessionRuns> runs,
                                    std::shared_ptr<SessionGraphs> graphs);
// A user's own stream. `on_release` is called once it is destroyed.
OrtSyncStreamImpl* NewUserStream(const Api& api, DeviceState& device, std::function<void()> on_release);

// The runtime's stream behind ORT's; null for ORT's own placeholder streams.
Stream* StreamOf(const Api& api, OrtSyncStream* stream);

}  // namespace npu::provider
