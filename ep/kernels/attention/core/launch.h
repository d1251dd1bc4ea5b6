// Launches an Attention or a Gradient.
#pragma once

#include <utility>

#include "ep/runtime/kernel_api.h"

namespace npu::attention {

// Launches `before()`, then the work with a workspace of the size that it reports, then `after()`.
template <class Work, class Before, class After>
void LaunchWork(OpContext& ctx, const char* op, Work work, Before before, After after) {
  void* workspace = work.WorkspaceBytes() > 0 ? ctx.Workspace(work.WorkspaceBytes()) : nullptr;
  ctx.Launch(op, [work = std::move(work), before = std::move(before), after = std::move(after), workspace] {
    before();
    work.Run(workspace);
    after();
  });
}

template <class Work, class Before>
void LaunchWork(OpContext& ctx, const char* op, Work work, Before before) {
  LaunchWork(ctx, op, std::move(work), std::move(before), [] {});
}

template <class Work>
void LaunchWork(OpContext& ctx, const char* op, Work work) {
  LaunchWork(ctx, op, std::move(work), [] {});
}

}  // namespace npu::attention
