#include "motley/graph/onnx.h"
