// Device memory without a cache: blocks have the requested size, of which AddressSanitizer sees the bounds in a build
// with it (tools/sanitize.sh address).
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "ep/runtime/device.h"
#include "ep/runtime/host/host_backend.h"
#include "ep/runtime/sanitizers.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

int64_t MappedPages() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

// The size of the block that a child process allocates.
size_t SizeFromEnvironment() { return std::stoul(getenv("NPU_TEST_BYTES")); }

test::ChildResult RunWithoutCache(const std::string& test_case, size_t bytes) {
  return test::RunTestCase(test_case,
                           {{"PYTORCH_NO_NPU_MEMORY_CACHING", "1"}, {"NPU_TEST_BYTES", std::to_string(bytes)}});
}

TEST_CASE("a block that is no multiple of a page is unmapped as a whole") {
  if (kAddressSanitizer) return;  // its blocks are not mapped
  const auto backend = MakeHostBackend({1, 64 * kMiB, "test device"});
  const int64_t before = MappedPages();
  constexpr size_t kBytes = 2 * kMiB + 512;
  for (int i = 0; i < 500; ++i) backend->FreeDevice(0, backend->AllocDevice(0, kBytes), kBytes);
  CHECK(MappedPages() - before < 64 * static_cast<int64_t>(kMiB / 4096));  // 500 tails would be 1 GiB
}

TEST_CASE("child: a launch writes within its block and then behind it" * doctest::skip()) {
  const size_t bytes = SizeFromEnvironment();
  Device& device = Runtime::Instance().device(0);
  auto* block = static_cast<volatile char*>(device.allocator().Allocate(bytes, device.default_stream()));
  device.default_stream().Launch("within", [=] {
    block[0] = 1;
    block[bytes - 1] = 1;
  });
  device.Synchronize();
  std::printf("was within\n");
  std::fflush(stdout);
  device.default_stream().Launch("behind", [=] { block[bytes] = 1; });
  device.Synchronize();
}

TEST_CASE("child: a launch reads a freed block" * doctest::skip()) {
  const size_t bytes = SizeFromEnvironment();
  Device& device = Runtime::Instance().device(0);
  auto* block = static_cast<volatile char*>(device.allocator().Allocate(bytes, device.default_stream()));
  device.default_stream().Launch("before", [=] { block[0] = 1; });
  device.allocator().Free(const_cast<char*>(block));  // in the order of the stream: the launch may still run
  device.Synchronize();
  device.allocator().EmptyCache();
  std::printf("was allocated\n");
  std::fflush(stdout);
  device.default_stream().Launch("after", [=] { block[0] = block[0] + 1; });
  device.Synchronize();
}

TEST_CASE("AddressSanitizer reports an access one byte behind a block, and one to a freed block") {
  if (!kAddressSanitizer) return;
  for (const size_t bytes : {size_t{1}, size_t{1000}, size_t{1024}, 3 * kMiB + 4}) {
    CAPTURE(bytes);
    const auto behind = RunWithoutCache("child: a launch writes within its block and then behind it", bytes);
    CAPTURE(behind.output);
    CHECK(behind.exit_code != 0);
    CHECK(behind.output.find("was within") != std::string::npos);
    CHECK(behind.output.find("heap-buffer-overflow") != std::string::npos);
    const auto freed = RunWithoutCache("child: a launch reads a freed block", bytes);
    CAPTURE(freed.output);
    CHECK(freed.exit_code != 0);
    CHECK(freed.output.find("was allocated") != std::string::npos);
    CHECK(freed.output.find("heap-use-after-free") != std::string::npos);
  }
}

}  // namespace
}  // namespace npu
