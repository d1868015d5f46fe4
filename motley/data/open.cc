#include "motley/data/open.h"
