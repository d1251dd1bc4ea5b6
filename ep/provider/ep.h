// The execution provider of one session.
#pragma once

#include <memory>

#include "ep/provider/abi.h"
#include "ep/provider/assignment_log.h"
#include "ep/provider/device_state.h"
#include "ep/provider/options.h"
#include "ep/provider/session_graphs.h"
#include "ep/provider/session_runs.h"
#include "ep/provider/shared_constants.h"

namespace npu::provider {

class Factory;

OrtEp* NewEp(Factory& factory, const Options& options, const OrtLogger* logger);
void DeleteEp(OrtEp* ep) noexcept;

DeviceState& DeviceOf(const OrtEp* ep);
const Options& OptionsOf(const OrtEp* ep);
// Shared with the session's kernels, which may outlive the provider.
std::shared_ptr<SharedConstants> ConstantsOf(const OrtEp* ep);
std::shared_ptr<SessionRuns> RunsOf(const OrtEp* ep);
std::shared_ptr<SessionGraphs> GraphsOf(const OrtEp* ep);  // null in a session without graphs

// Sessions are created on the caller's thread. Between the two calls, the log of the last provider created on this
// thread is kept, from which Python reads the decisions for the session it just created.
void BeginAssignmentCapture();
std::shared_ptr<const AssignmentLog> EndAssignmentCapture();

}  // namespace npu::provider
