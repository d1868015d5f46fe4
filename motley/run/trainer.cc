#include "motley/run/trainer.h"
