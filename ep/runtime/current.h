// What is current on a thread: its device, and on each device its stream.
#pragma once

#include <cstdint>
#include <string>

#include "ep/runtime/device.h"

namespace npu {

int CurrentDevice();               // 0 until the thread chose another
void SetCurrentDevice(int index);  // throws "invalid device ordinal"

// The device's default stream until the thread chose another.
Stream& CurrentStream(int device);
// "STREAM THREAD": the id of the current stream and a number of this thread, for work that another thread starts on its
// behalf.
std::string CallerStream(int device);
uint64_t ThisThreadNumber();  // not 0, never used again

// Current on its device for this thread. Whoever owns the stream keeps it while it is current.
void SetCurrentStream(Stream& stream);

// The next of a few streams of that priority, which are made when first asked for and live as long as the
// process: what users get who ask for "a stream".
Stream& PooledStream(int device, int priority);
inline constexpr int kStreamsPerPool = 32;
// Likewise, of streams whose launches return when their work is done.
Stream& PooledSyncLaunchStream(int device);
inline constexpr int kSyncLaunchStreamsPerPool = 4;

}  // namespace npu
