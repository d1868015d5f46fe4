#include "motley/optim/sgd.h"
