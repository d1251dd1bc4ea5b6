// Pages of mapped files.
#pragma once

#include <cstddef>

namespace npu {

// Removes the whole pages in the range that map a file or shared memory from this process's resident memory; the next
// access finds the same content. Other pages are left alone: those written in a private mapping, and anonymous memory.
void ReleaseFilePages(const void* address, size_t bytes);

}  // namespace npu
