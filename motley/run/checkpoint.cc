#include "motley/run/checkpoint.h"
