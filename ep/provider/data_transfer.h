// ORT's data transfer: copies between the host and any NPU of the factory, and between NPUs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ep/provider/abi.h"
#include "ep/provider/device_state.h"

namespace npu::provider {

// `on_release` is called once it is destroyed.
OrtDataTransferImpl* NewDataTransfer(const Api& api, const std::vector<std::unique_ptr<DeviceState>>& devices,
                                     std::function<void()> on_release);

}  // namespace npu::provider
