#include "motley/data/loader.h"
