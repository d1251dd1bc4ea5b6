// Calls that name no group of this rank, while the other ranks make theirs in one that it has.
#pragma once

#include <string>

namespace npu {

// Takes part in the others' call with an error of this rank, so that they fail now and not after their timeout. In
// which group they call is seen when one of them waits for this rank there; ends without them once all ranks search so,
// or after the longest of the groups' timeouts. To be called in the turn of the call that failed.
void RefuseWhereAwaited(const char* op, const std::string& why) noexcept;

}  // namespace npu
