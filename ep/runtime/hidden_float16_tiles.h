#pragma once

namespace npu {

// Whether this processor multiplies tiles of float16 (AMX-FP16), whatever its feature bits say: some hypervisors hide
// that bit. Executes the instruction, so the process must have been granted tile registers; that it is illegal is
// noticed by a handler of SIGILL, which is the process's for that moment and passes all other signals on to the one
// before it. Not to be called by two threads at a time.
bool HasHiddenFloat16Tiles();

}  // namespace npu
