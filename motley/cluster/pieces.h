#ifndef MOTLEY_CLUSTER_PIECES_H_
#define MOTLEY_CLUSTER_PIECES_H_

#include <cstdint>
#include <iterator>
#include <map>

namespace motley::cluster {

// Which pieces of an array have come, in whatever order and of whatever sizes.
//
// Thread safety: none.
class Pieces {
 public:
  // [begin, end) has come. False, and nothing changes, when some of it was here before. Requires
  // begin < end.
  bool Add(std::int64_t begin, std::int64_t end) {
    auto next = here_.lower_bound(begin);
    if (next != here_.end() && next->first < end) return false;
    const auto before = next == here_.begin() ? here_.end() : std::prev(next);
    if (before != here_.end() && before->second > begin) return false;
    // Neighbours become one, so that pieces in order cost nothing.
    if (next != here_.end() && next->first == end) {
      end = next->second;
      here_.erase(next);
    }
    if (before != here_.end() && before->second == begin) {
      before->second = end;
    } else {
      here_.emplace(begin, end);
    }
    return true;
  }
  void Clear() { here_.clear(); }

 private:
  std::map<std::int64_t, std::int64_t> here_;  // begin -> end
};

}  // namespace motley::cluster

#endif  // MOTLEY_CLUSTER_PIECES_H_
