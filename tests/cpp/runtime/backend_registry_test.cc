#include "ep/runtime/backend_registry.h"

#include <doctest/doctest.h>

#include <string>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/child_process.h"

namespace npu {

TEST_CASE("backends are found by name; the error for an unknown name lists them") {
  CHECK(FindBackend("host").kernels == "host");
  CHECK(FindBackend("null").kernels == "host");
  CHECK_THROWS_WITH_AS(FindBackend("ascend9"), "[ORT_NPU_BACKEND] expected one of host, null, got 'ascend9'", Error);
  CHECK_THROWS_AS(FindBackend(""), Error);
}

TEST_CASE("a backend name can be registered only once") {
  CHECK_THROWS_WITH_AS(RegisterBackend({"host", "host", nullptr}), doctest::Contains("two backends are called host"),
                       Error);
  CHECK((FindBackend("host").make != nullptr));
}

TEST_CASE("child: the runtime's backend is unknown" * doctest::skip()) {
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(Runtime::Instance(), "[ORT_NPU_BACKEND] expected one of host, null, got 'Host'", Error);
}

TEST_CASE("child: the runtime's backend is host" * doctest::skip()) {
  CHECK(std::string(Runtime::Instance().backend().name()) == "host");
}

TEST_CASE("ORT_NPU_BACKEND selects the runtime's backend, host by default") {
  for (const auto& [name, child] : {std::pair{"Host", "child: the runtime's backend is unknown"},
                                    std::pair{"", "child: the runtime's backend is host"},
                                    std::pair{"host", "child: the runtime's backend is host"}}) {
    const auto result = test::RunTestCase(child, {{"ORT_NPU_BACKEND", name}});
    CAPTURE(result.output);
    CHECK(result.exit_code == 0);
  }
}

}  // namespace npu
