// The current device of a thread, and its current stream on each device.
#pragma once

#include <cstdint>
#include <string>

#include "ep/runtime/device.h"

namespace npu {

int CurrentDevice();               // 0 until the thread sets another
void SetCurrentDevice(int index);  // throws "invalid device ordinal"

// The device's default stream until the thread sets another.
Stream& CurrentStream(int device);
// "STREAM THREAD": the id of the current stream and a number of this thread, for work that another thread starts on its
// behalf.
std::string CallerStream(int device);
uint64_t ThisThreadNumber();  // nonzero, never reused

// Makes the stream current on its device for this thread. Its owner keeps it while it is current.
void SetCurrentStream(Stream& stream);

// The next of a few streams of that priority, which are created on demand and exist as long as the process: for users
// who request any stream.
Stream& PooledStream(int device, int priority);
inline constexpr int kStreamsPerPool = 32;
// The same with streams whose launches return when their work is done.
Stream& PooledSyncLaunchStream(int device);
inline constexpr int kSyncLaunchStreamsPerPool = 4;

}  // namespace npu
