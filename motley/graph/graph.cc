#include "motley/graph/graph.h"
