// A short form of the stress program (tests/stress), from a fixed seed: what each thread does is then the same in every
// run, and only how the threads meet is not.
#include "tests/stress/stress.h"

#include <doctest/doctest.h>

#include <cstdio>

TEST_CASE("eight threads that mix all runtime calls see the expected values and errors") {
  CHECK(npu::stress::RunStress({.seconds = 8, .seed = 20, .threads = 8, .round_seconds = 2}, stdout));
}
