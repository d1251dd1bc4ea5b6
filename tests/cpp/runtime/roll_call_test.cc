#include "ep/runtime/roll_call.h"

#include <doctest/doctest.h>

using std::chrono::milliseconds;

TEST_CASE("a quarter of a limit, and five seconds at most, are kept for reports") {
  CHECK(npu::TimeForReports(milliseconds(2000)) == milliseconds(500));
  CHECK(npu::TimeForReports(milliseconds(20000)) == milliseconds(5000));
  CHECK(npu::TimeForReports(milliseconds(1800000)) == milliseconds(5000));
  CHECK(npu::TimeForReports(milliseconds(-1)) == milliseconds(0));
}

TEST_CASE("ranks without a report of a failure are missing") {
  const npu::RankReports reports{milliseconds(2000), std::nullopt, milliseconds(10), std::nullopt};
  const std::string missing = "; no report of it from rank 1, 3, which ended, stands still or is late";
  CHECK(npu::DescribeMissing(reports) == missing);
  CHECK(npu::DescribeFailure(reports) == missing);
}

TEST_CASE("of ranks that all report a failure, those that had waited much less were late") {
  const npu::RankReports reports{milliseconds(2000), milliseconds(700), milliseconds(1900)};
  CHECK(npu::DescribeMissing(reports) == "");
  CHECK(npu::DescribeFailure(reports) == "; rank 1 was late");
}

TEST_CASE("ranks that had waited about as long are not told apart") {
  CHECK(npu::DescribeFailure({milliseconds(400), milliseconds(0)}) == "; all ranks report a failure");
}
