#include "python/csrc/torch_distributed/group_notes.h"

#include <c10/util/StringUtil.h>

namespace npu::distributed {
namespace {

constexpr const char* kWaiting = "hccl_waiting";
constexpr const char *kSearches = "yes", *kSearchesNoMore = "no";

std::string SearchKey(int rank) { return c10::str("hccl_searches/", rank); }

}  // namespace

void GroupNotes::TellWaiting(const std::string& place) noexcept {
  try {
    store_->set(kWaiting, place);
  } catch (const std::exception&) {
    // The exchange itself may still succeed.
  }
}

bool GroupNotes::IsWaiting(const std::string& place) { return Says(kWaiting, place); }

void GroupNotes::TellSearch(bool searching) { store_->set(SearchKey(rank_), searching ? kSearches : kSearchesNoMore); }

bool GroupNotes::OthersSearch() {
  for (int rank = 0; rank < size_; ++rank)
    if (rank != rank_ && !Says(SearchKey(rank), kSearches)) return false;
  return true;
}

bool GroupNotes::Says(const std::string& key, const std::string& text) {
  return store_->check({key}) && store_->get_to_str(key) == text;
}

}  // namespace npu::distributed
