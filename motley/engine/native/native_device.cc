#include "motley/engine/native/native_device.h"
