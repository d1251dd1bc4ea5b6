#include "ep/runtime/file_pages.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "tests/cpp/support/temporary_folder.h"

namespace npu {
namespace {

constexpr size_t kPages = 64;

// Memory of kPages resident pages, filled with `content`.
class Mapping {
 public:
  explicit Mapping(char content, const std::string& file = {}) {
    const int fd = file.empty() ? -1 : open(file.c_str(), O_RDONLY);
    // Between inaccessible pages, so that it is a separate entry in smaps.
    void* around = mmap(nullptr, bytes() + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(around != MAP_FAILED);
    data_ = static_cast<char*>(around) + page();
    const int kind = MAP_PRIVATE | MAP_FIXED | (file.empty() ? MAP_ANONYMOUS : 0);
    REQUIRE(mmap(data_, bytes(), PROT_READ | PROT_WRITE, kind, fd, 0) == data_);
    if (fd >= 0) close(fd);
    if (file.empty()) std::memset(data_, content, bytes());
    CHECK(Holds(content));  // reads every page
  }
  ~Mapping() { munmap(data_ - page(), bytes() + 2 * page()); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  static size_t bytes() { return kPages * page(); }
  char* data() const { return data_; }
  bool Holds(char content) const { return std::string(data_, bytes()) == std::string(bytes(), content); }

  size_t ResidentPages() const {
    std::ifstream smaps("/proc/self/smaps");
    char start[32];
    std::snprintf(start, sizeof start, "%lx-", reinterpret_cast<unsigned long>(data_));
    bool found = false;
    for (std::string line; std::getline(smaps, line);) {
      found |= line.rfind(start, 0) == 0;
      if (found && line.rfind("Rss:", 0) == 0) return std::stoul(line.substr(4)) * 1024 / page();
    }
    FAIL("the mapping is not in smaps");
    return 0;
  }

 private:
  char* data_ = nullptr;
};

}  // namespace

TEST_CASE("only whole pages of a mapped file are released, and they read back unchanged") {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/pages";
  std::ofstream(path) << std::string(Mapping::bytes(), 'f');
  const Mapping file('f', path);
  REQUIRE(file.ResidentPages() == kPages);
  const size_t page = Mapping::page();
  SUBCASE("all") {
    ReleaseFilePages(file.data(), Mapping::bytes());
    CHECK(file.ResidentPages() == 0);
  }
  SUBCASE("parts of pages stay") {
    ReleaseFilePages(file.data() + 1, 3 * page);
    CHECK(file.ResidentPages() == kPages - 2);
    ReleaseFilePages(file.data() + 10 * page, page - 1);
    CHECK(file.ResidentPages() == kPages - 2);
  }
  CHECK(file.Holds('f'));
}

TEST_CASE("data written over a mapped file's content is kept") {
  test::TemporaryFolder folder;
  const std::string path = folder.path() + "/pages";
  std::ofstream(path) << std::string(Mapping::bytes(), 'f');
  const Mapping file('f', path);
  std::memset(file.data(), 'w', 1);
  std::memset(file.data() + 7 * Mapping::page(), 'w', 2 * Mapping::page());
  ReleaseFilePages(file.data(), Mapping::bytes());
  CHECK(file.ResidentPages() == 3);
  CHECK(file.data()[0] == 'w');
  CHECK(file.data()[1] == 'f');
  CHECK(std::string(file.data() + 7 * Mapping::page(), 2 * Mapping::page()) == std::string(2 * Mapping::page(), 'w'));
}

TEST_CASE("anonymous memory keeps its pages and content") {
  const Mapping memory('m');
  ReleaseFilePages(memory.data(), Mapping::bytes());
  CHECK(memory.ResidentPages() == kPages);
  CHECK(memory.Holds('m'));
}

}  // namespace npu
