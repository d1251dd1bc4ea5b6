#include "ep/provider/session_groups.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string_view>

#include "ep/runtime/error.h"
#include "ep/runtime/mpi/mpi_communicator.h"

namespace npu::provider {
namespace {

// Calls f(part) for the parts of `text` between separators; false as soon as it returns false.
template <class F>
bool ForEachPart(std::string_view text, char separator, F&& f) {
  for (;;) {
    const size_t end = text.find(separator);
    if (!f(text.substr(0, end))) return false;
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + 1);
  }
}

bool ParseMembers(std::string_view text, std::vector<int>& members) {
  return ForEachPart(text, ',', [&](std::string_view part) {
    int rank = -1;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), rank);
    const bool new_rank = std::find(members.begin(), members.end(), rank) == members.end();
    members.push_back(rank);
    return error == std::errc() && stop == part.data() + part.size() && rank >= 0 && new_rank;
  });
}

void CheckFact(const char* option, int wanted, int found) {
  NPU_CHECK(wanted < 0 || wanted == found, "provider option '", option, "' expected ", found, ", as MPI says; got '",
            wanted, "'");
}

}  // namespace

bool ParseGroups(const std::string& text, std::vector<GroupSpec>& groups) {
  return ForEachPart(text, ';', [&](std::string_view part) {
    const size_t end = part.find('=');
    GroupSpec group{std::string(part.substr(0, end)), {}};
    if (group.name.empty()) return false;
    for (const GroupSpec& other : groups)
      if (other.name == group.name) return false;
    if (end != std::string_view::npos && !ParseMembers(part.substr(end + 1), group.members)) return false;
    groups.push_back(std::move(group));
    return true;
  });
}

std::vector<std::shared_ptr<Communicator>> MakeGroups(const Options& options) {
  std::vector<std::shared_ptr<Communicator>> made;
  if (!options.communicates) return made;
  MpiWorld& world = MpiWorld::Join(options.mpi_library, options.communication_timeout);
  CheckFact("rank", options.rank, world.rank());
  CheckFact("world_size", options.world_size, world.size());
  std::vector<GroupSpec> groups;
  ParseGroups(options.groups, groups);
  for (GroupSpec& group : groups) {
    if (group.members.empty()) {
      group.members.resize(static_cast<size_t>(world.size()));
      std::iota(group.members.begin(), group.members.end(), 0);
    }
    const int last = *std::max_element(group.members.begin(), group.members.end());
    NPU_CHECK(last < world.size(), "provider option 'groups' expected ranks from 0 to ", world.size() - 1,
              ", as MPI says; got ", last, " in '", Printable(group.name), "'");
    if (std::find(group.members.begin(), group.members.end(), world.rank()) != group.members.end())
      made.push_back(world.Group(group.name, group.members, options.communication_timeout));
  }
  return made;
}

}  // namespace npu::provider
