#ifndef MOTLEY_APPS_MOTLEY_SUGGEST_H_
#define MOTLEY_APPS_MOTLEY_SUGGEST_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace motley::app {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int EditDistance(std::string_view a, std::string_view b);

// The candidate that somebody who typed `word` most likely meant; none when all are far from it.
std::optional<std::string> Nearest(std::string_view word,
                                   const std::vector<std::string>& candidates);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_SUGGEST_H_
