// Who is to blame for an exchange that failed, told from what the ranks report of it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace npu {

// For each rank how long it had waited when the exchange failed, or nothing if it has not reported a failure.
using RankReports = std::vector<std::optional<std::chrono::milliseconds>>;

// The part of a limit of time that is kept for the ranks' reports, so that an error which names them comes within the
// limit. Ranks that wait report within milliseconds; on a busy machine it may take longer.
std::chrono::milliseconds TimeForReports(std::chrono::milliseconds limit);

// Phrases for an error. The first is empty if all ranks have reported; the second then names those that had waited much
// less than the others.
std::string DescribeMissing(const RankReports& reports);
std::string DescribeFailure(const RankReports& reports);

}  // namespace npu
