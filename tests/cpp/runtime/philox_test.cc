#include "ep/runtime/philox.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace npu {

namespace {

struct KnownAnswer {
  uint64_t counter, offset, seed;  // lower half of the counter, upper half, key
  uint32_t words[4];
};

// Published with the generator, in Random123.
constexpr KnownAnswer kKnown[] = {
    {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

}  // namespace

TEST_CASE("Philox matches the published values") {
  for (const KnownAnswer& known : kKnown) {
    uint32_t words[4];
    Philox{known.seed, known.offset}.Fill(known.counter, 1, words);
    for (int i = 0; i < 4; ++i) CHECK(words[i] == known.words[i]);
  }
}

TEST_CASE("Philox gives the same numbers whole and in pieces") {
  const Philox generator{12345, 678};
  std::vector<uint32_t> whole(4 * 37), part(4);
  generator.Fill(1000, 37, whole.data());
  for (uint64_t block = 0; block < 37; ++block) {
    generator.Fill(1000 + block, 1, part.data());
    for (size_t i = 0; i < 4; ++i) CHECK(part[i] == whole[4 * block + i]);
  }
}

}  // namespace npu
