// A short form of the stress program (tests/stress) with a fixed seed: each thread does the same in every run, only the
// interleaving differs.
#include "tests/stress/stress.h"

#include <doctest/doctest.h>

#include <cstdio>

TEST_CASE("eight threads that mix all runtime calls see the expected values and errors") {
  CHECK(npu::stress::RunStress({.seconds = 8, .seed = 20, .threads = 8, .round_seconds = 2}, stdout));
}
