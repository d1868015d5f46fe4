#include "motley/telemetry/events.h"
