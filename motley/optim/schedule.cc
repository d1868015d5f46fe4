#include "motley/optim/schedule.h"
