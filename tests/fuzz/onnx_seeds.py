"""Small sound ONNX and safetensors files for the fuzzers to start from. Standard library only."""

import json
import struct

FLOAT, INT64 = 1, 7  # ONNX's element types


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, value):
    """One protobuf field: an integer, or bytes or text with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def attribute(name, value):
    if isinstance(value, int):
        return field(1, name) + field(3, value) + field(20, 2)
    if isinstance(value, str):
        return field(1, name) + field(4, value) + field(20, 3)
    if isinstance(value, float):
        return field(1, name) + varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, 1)
    return field(1, name) + b"".join(field(8, v) for v in value) + field(20, 7)


def node(op, inputs, outputs, **attributes):
    return field(1, b"".join(
        [field(1, x) for x in inputs.split()] + [field(2, x) for x in outputs.split()]
        + [field(3, op + "_" + outputs.split()[0]), field(4, op)]
        + [field(5, attribute(k, v)) for k, v in attributes.items()]))


def floats(name, *dims):
    count = 1
    for dim in dims:
        count *= dim
    data = struct.pack(f"<{count}f", *[0.1 * i for i in range(count)])
    return field(5, b"".join(field(1, d) for d in dims) + field(2, FLOAT) + field(8, name)
                 + field(9, data))


def ints(name, *values):
    return field(5, field(1, len(values)) + field(2, INT64) + field(8, name)
                 + b"".join(field(7, v) for v in values))


def value(name, *dims):
    shape = field(1, field(2, "n")) + b"".join(field(1, field(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape)))


def model(opset, dims, *parts):
    graph = b"".join(parts) + field(2, "g") + field(11, value("x", *dims)) + field(12, field(1, "y"))
    return field(1, 7) + field(7, graph) + field(8, field(2, opset))


def onnx_files():
    yield "layers", model(
        13, (2, 6, 6), floats("c.weight", 4, 1, 3, 3), floats("c.bias", 4),
        *[floats(f"b.{k}", 4) for k in ("weight", "bias", "mean", "var")],
        node("Conv", "x c.weight c.bias", "c", group=2, pads=(1, 1, 1, 1), kernel_shape=(3, 3)),
        node("BatchNormalization", "c b.weight b.bias b.mean b.var", "b m v", momentum=0.9,
             epsilon=0.001, training_mode=1),
        node("Relu", "b", "r"), node("Add", "r c", "a"), node("LRN", "a", "l", size=3),
        node("MaxPool", "l", "p", kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1),
        node("AveragePool", "p", "q", kernel_shape=(2, 2), auto_pad="SAME_UPPER"),
        node("GlobalAveragePool", "q", "g"), node("Flatten", "g", "f", axis=1),
        floats("w", 4, 3), floats("d", 3), node("MatMul", "f w", "mm"), node("Add", "mm d", "s"),
        node("Softmax", "s", "y", axis=1))
    yield "shuffle", model(
        13, (4, 2, 2), ints("zero", 0), ints("groups", 2), ints("rest", 2, 2, 2),
        ints("back", 0, 4, -1, 2), ints("starts", 1), ints("ends", -1), ints("axes", 1),
        ints("pads", 0, 0, 1, -1, 0, 0, 0, 1), node("Shape", "x", "shape"),
        node("Gather", "shape zero", "n", axis=0), node("Mul", "groups groups", "four"),
        node("Div", "four groups", "two"), node("Concat", "n two rest", "target", axis=0),
        node("Reshape", "x target", "a"), node("Transpose", "a", "b", perm=(0, 2, 1, 3, 4)),
        node("Reshape", "b back", "c"), node("Slice", "c starts ends axes", "s"),
        node("Split", "s", "u v", axis=1), node("Concat", "v u", "k", axis=1),
        node("Pad", "k pads", "p", mode="constant"), node("Dropout", "p", "o"),
        node("ReduceMean", "o", "m", axes=(2, 3), keepdims=0), floats("w", 2, 2),
        node("Gemm", "m w", "y", transB=1))
    yield "old", model(
        9, (3,), node("Clip", "x", "c", min=0.0, max=6.0), node("Dropout", "c", "d", ratio=0.25),
        node("Identity", "d", "i"), floats("w", 3, 2), node("Gemm", "i w", "y"))


def safetensors_files():
    arrays = {"b": ([2], 0, 8), "a": ([1, 1], 8, 12), "empty": ([0, 3], 12, 12), "s": ([], 12, 16)}
    header = {"__metadata__": {"k": "v"}}
    for name, (shape, begin, end) in arrays.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    yield "arrays", struct.pack("<Q", len(text)) + text + struct.pack("<4f", 1.0, -2.0, 0.5, 3.0)
    yield "nothing", struct.pack("<Q", 2) + b"{}"
