// ORT's streams and notifications over the runtime's streams and events.
#pragma once

#include <memory>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"
#include "ep/provider/session_graphs.h"

namespace npu::provider {

// Released by ORT through its Release function. With `graphs`, over the stream of theirs.
OrtSyncStreamImpl* NewSyncStream(const Api& api, DeviceState& device, std::shared_ptr<SessionGraphs> graphs = nullptr);

// The runtime's stream behind ORT's; null for ORT's own placeholder streams.
Stream* StreamOf(const Api& api, OrtSyncStream* stream);

}  // namespace npu::provider
