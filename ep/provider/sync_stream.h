// ORT's streams and notifications over the runtime's streams and events.
#pragma once

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"

namespace npu::provider {

// Released by ORT through its Release function.
OrtSyncStreamImpl* NewSyncStream(const Api& api, DeviceState& device);

// The runtime's stream behind ORT's; null for ORT's own placeholder streams.
Stream* StreamOf(const Api& api, OrtSyncStream* stream);

}  // namespace npu::provider
