#ifndef MOTLEY_APPS_MOTLEY_DATA_SPEC_H_
#define MOTLEY_APPS_MOTLEY_DATA_SPEC_H_

#include <string>

#include "motley/base/status.h"

namespace motley::app {

// The dataset that somebody means who gives a form of a job file ("idx:DIR"), or only a folder or
// an archive: then its files tell the form. Empty stays empty; what does not exist is refused.
base::Result<std::string> DataSpecOf(const std::string& text);

}  // namespace motley::app

#endif  // MOTLEY_APPS_MOTLEY_DATA_SPEC_H_
