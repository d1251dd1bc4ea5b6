// npu_stress --seconds N --seed S --threads T: mixes calls of the runtime on many threads for a long time, and checks
// every value and every error.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "tests/stress/stress.h"

int main(int argc, char** argv) {
  // Streams that are destroyed with an unreported error are part of the program.
  setenv("ORT_NPU_LOG", "error", /*overwrite=*/0);
  npu::stress::Options options;
  for (int i = 1; i < argc; i += 2) {
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    char* end = nullptr;
    const double number = std::strtod(value, &end);
    if (std::strcmp(argv[i], "--seconds") == 0) {
      options.seconds = number;
    } else if (std::strcmp(argv[i], "--seed") == 0) {
      options.seed = std::strtoull(value, &end, 10);
    } else if (std::strcmp(argv[i], "--threads") == 0) {
      options.threads = static_cast<int>(number);
    } else {
      end = nullptr;
    }
    if (end == nullptr || end == value || *end != '\0' || options.threads < 1) {
      std::fprintf(stderr, "usage: %s [--seconds N] [--seed S] [--threads T]\n", argv[0]);
      return 2;
    }
  }
  try {
    return npu::stress::RunStress(options, stdout) ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stdout, "DIFFERENCE: %s\n", e.what());
    return 1;
  }
}
