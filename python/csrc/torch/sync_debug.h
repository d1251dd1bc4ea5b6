// torch.npu.set_sync_debug_mode: reports calls that wait implicitly.
#pragma once

namespace npu::aten {

void SetSyncDebugMode(int mode);  // 0: nothing, 1: warn, 2: raise
// To be called before an operation that makes the host wait, such as .item(): warns or raises as the mode says.
void BeforeImplicitSync();

}  // namespace npu::aten
