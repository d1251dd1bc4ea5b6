// What torch.npu.set_sync_debug_mode asks for where a call waits without having been asked to.
#pragma once

namespace npu::aten {

void SetSyncDebugMode(int mode);  // 0: nothing, 1: warn, 2: raise
// Before a call that makes the host wait, such as .item(): warns or raises as the mode says.
void BeforeImplicitSync();

}  // namespace npu::aten
