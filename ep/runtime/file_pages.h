// Pages of mapped files.
#pragma once

#include <cstddef>

namespace npu {

// Whole pages in the range that show what a file or shared memory holds are no longer this process's resident memory;
// the next access finds the same content. Nothing happens to other pages: those that were written in a private
// mapping, and anonymous memory.
void ReleaseFilePages(const void* address, size_t bytes);

}  // namespace npu
