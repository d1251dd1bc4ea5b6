#include "ep/runtime/store_element.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

#include "ep/runtime/error.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

TEST_CASE("an element is read at the call and written in stream order, without extra bytes") {
  TestDevice t;
  std::array<uint32_t, 3> to{1, 2, 3};
  Gate gate;
  OpenAtExit open{gate};
  t.stream().Launch("op", [&] { gate.Wait(); });
  uint32_t element = 7;
  StoreElement(t.stream(), &to[1], &element, sizeof element);
  element = 8;
  CHECK(to[1] == 2);
  gate.Open();
  t.stream().Synchronize();
  CHECK(to == std::array<uint32_t, 3>{1, 7, 3});
}

TEST_CASE("an oversized element is refused") {
  TestDevice t;
  std::array<unsigned char, kMaxElementBytes + 1> element{}, to{};
  CHECK_THROWS_AS(StoreElement(t.stream(), to.data(), element.data(), element.size()), Error);
}

}  // namespace npu
