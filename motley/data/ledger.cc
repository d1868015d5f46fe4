#include "motley/data/ledger.h"
