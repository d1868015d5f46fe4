#include "motley/data/transform.h"
