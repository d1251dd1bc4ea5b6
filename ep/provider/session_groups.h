// The groups of ranks that a session's operators may name, as its provider options describe them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ep/provider/options.h"
#include "ep/runtime/communicator.h"

namespace npu::provider {

// A group of the option `groups`: "name" has all ranks of the world, "name=0,2" those.
struct GroupSpec {
  std::string name;
  std::vector<int> members;  // empty: all
};

// False when the text is no list of such groups, with a semicolon between each two.
bool ParseGroups(const std::string& text, std::vector<GroupSpec>& groups);

// Joins the other ranks and makes the groups that this rank belongs to; nothing without the option `communicator`.
// Throws when the options do not fit the ranks that there are.
std::vector<std::shared_ptr<Communicator>> MakeGroups(const Options& options);

}  // namespace npu::provider
