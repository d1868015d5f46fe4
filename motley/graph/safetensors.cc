#include "motley/graph/safetensors.h"
