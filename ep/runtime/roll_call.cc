#include "ep/runtime/roll_call.h"

#include <algorithm>

#include "ep/runtime/error.h"

namespace npu {
namespace {

constexpr std::chrono::milliseconds kNoticeable{500};  // by which ranks that call at the same time do not differ

template <class F>
std::string RanksWhere(const RankReports& reports, const F& is_one) {
  std::string ranks;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (is_one(reports[rank])) ranks += Concat(ranks.empty() ? "" : ", ", rank);
  return ranks;
}

}  // namespace

std::chrono::milliseconds TimeForReports(std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds kMost{5000};
  return std::clamp(limit / 4, std::chrono::milliseconds(0), kMost);
}

std::string DescribeMissing(const RankReports& reports) {
  const std::string missing = RanksWhere(reports, [](const auto& waited) { return !waited; });
  return missing.empty() ? ""
                         : Concat("; no report of it from rank ", missing, ", which ended, stands still or is late");
}

std::string DescribeFailure(const RankReports& reports) {
  if (std::string missing = DescribeMissing(reports); !missing.empty()) return missing;
  const std::chrono::milliseconds longest = **std::max_element(reports.begin(), reports.end());
  const std::string late = RanksWhere(reports, [&](const auto& waited) { return 2 * *waited + kNoticeable < longest; });
  return late.empty() ? "; all ranks report a failure" : Concat("; rank ", late, " was late");
}

}  // namespace npu
