#include "motley/engine/reference/reference_device.h"
