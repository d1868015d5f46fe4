#include "motley/graph/zoo.h"
