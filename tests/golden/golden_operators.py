"""Evaluates small graphs with PyTorch's own operators, in float64.

    golden_operators.py FOLDER

For every NAME.json in FOLDER (nodes in topological order, with attributes) and NAME.safetensors
(weights, buffers, images, labels, dropout factors) writes NAME.golden.safetensors:

    loss, gradient/P, buffer_sums/B    of a training step; sums over the samples
    logits                             of a forward pass with running statistics, without dropout

Values are rounded to float32 at the very end; losses are sums of two float32 numbers.
"""

import glob
import json
import os
import struct
import sys

import numpy
import torch
import torch.nn.functional as F

from make_golden import float32, two_floats, write_safetensors


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = numpy.frombuffer(data[begin:end], dtype="<f4").reshape(entry["shape"])
        arrays[name] = torch.from_numpy(array.astype("f8"))
    return arrays


def sides(pad):
    """[top, left, bottom, right] in the order of F.pad."""
    top, left, bottom, right = pad
    return (left, right, top, bottom)


def is_symmetric(pad):
    return pad[0] == pad[2] and pad[1] == pad[3]


def max_pool(x, a):
    if is_symmetric(a["pad"]):
        return F.max_pool2d(x, a["kernel"], a["stride"], a["pad"][:2], ceil_mode=a["ceil_mode"])
    assert not a["ceil_mode"], "PyTorch has no asymmetric padding with ceil_mode"
    return F.max_pool2d(F.pad(x, sides(a["pad"]), value=-float("inf")), a["kernel"], a["stride"])


def avg_pool(x, a):
    if is_symmetric(a["pad"]):
        return F.avg_pool2d(
            x, a["kernel"], a["stride"], a["pad"][:2], a["ceil_mode"], a["count_include_pad"]
        )
    assert not a["ceil_mode"], "PyTorch has no asymmetric padding with ceil_mode"
    pool = lambda y: F.avg_pool2d(F.pad(y, sides(a["pad"])), a["kernel"], a["stride"])
    return pool(x) if a["count_include_pad"] else pool(x) / pool(torch.ones_like(x))


def shuffle(x, groups):
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Evaluation:
    """One pass of a graph. `training`: batch statistics and dropout."""

    def __init__(self, graph, arrays, parameters, training):
        self.graph, self.arrays, self.parameters = graph, arrays, parameters
        self.training = training
        self.buffer_sums = {}

    def run(self):
        values = []
        for node in self.graph["nodes"]:
            inputs = [values[i] for i in node["inputs"]]
            values.append(self.evaluate(node, inputs))
        return values[-1]

    def parameter(self, node, suffix):
        return self.parameters.get(f"{node['name']}.{suffix}")

    def evaluate(self, node, inputs):
        op, a = node["op"], node["attrs"]
        x = inputs[0] if inputs else None
        if op == "input":
            return self.arrays["images"]
        if op == "convolution":
            weight, bias = self.parameter(node, "weight"), self.parameter(node, "bias")
            x = F.pad(x, sides(a["pad"]))
            return F.conv2d(x, weight, bias, a["stride"], 0, a["dilation"], a["groups"])
        if op == "fully connected":
            return F.linear(x, self.parameter(node, "weight"), self.parameter(node, "bias"))
        if op == "batch norm":
            return self.batch_norm(node, x)
        if op == "dropout":
            return x * self.arrays[f"dropout/{node['name']}"] if self.training else x
        simple = {
            "relu": lambda: F.relu(x),
            "relu6": lambda: F.relu6(x),
            "max pool": lambda: max_pool(x, a),
            "average pool": lambda: avg_pool(x, a),
            "global average pool": lambda: F.adaptive_avg_pool2d(x, 1),
            "add": lambda: inputs[0] + inputs[1],
            "concat": lambda: torch.cat(inputs, 1),
            "slice": lambda: x[:, a["begin"] : a["end"]],
            "channel shuffle": lambda: shuffle(x, a["groups"]),
            "pad": lambda: F.pad(x, sides(a["pad"])),
            "flatten": lambda: x.flatten(1),
            "lrn": lambda: F.local_response_norm(x, a["size"], a["alpha"], a["beta"], a["k"]),
        }
        return simple[op]()

    def batch_norm(self, node, x):
        name, epsilon = node["name"], node["attrs"]["epsilon"]
        weight, bias = self.parameter(node, "weight"), self.parameter(node, "bias")
        keys = [f"{name}.running_mean", f"{name}.running_var"]
        if not self.training:
            mean, variance = (self.arrays["buffers/" + key] for key in keys)
            return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, epsilon)
        parts = []
        for part in x.split(self.graph["bn_batch"] or len(x)):
            # With momentum 1 the running statistics become those of the batch.
            mean, variance = torch.zeros_like(weight), torch.zeros_like(weight)
            with torch.no_grad():
                F.batch_norm(part, mean, variance, None, None, True, 1.0, epsilon)
            for key, statistic in zip(keys, (mean, variance)):
                old = self.buffer_sums.get(key, torch.zeros_like(statistic))
                self.buffer_sums[key] = old + len(part) * statistic.detach()
            parts.append(F.batch_norm(part, None, None, weight, bias, True, 0.0, epsilon))
        return torch.cat(parts)


def judge(folder, name):
    with open(os.path.join(folder, name + ".json")) as file:
        graph = json.load(file)
    arrays = read_safetensors(os.path.join(folder, name + ".safetensors"))
    labels = arrays["labels"].long()
    parameters = {
        key[len("weights/") :]: value.clone().requires_grad_()
        for key, value in arrays.items()
        if key.startswith("weights/")
    }
    training = Evaluation(graph, arrays, parameters, training=True)
    loss = F.cross_entropy(training.run().flatten(1), labels, reduction="sum")
    loss.backward()
    with torch.no_grad():
        logits = Evaluation(graph, arrays, parameters, training=False).run().flatten(1)

    golden = {"loss": two_floats(loss.item()), "logits": float32(logits)}
    for key, value in parameters.items():
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        golden["gradient/" + key] = float32(gradient)
    for key, value in training.buffer_sums.items():
        golden["buffer_sums/" + key] = float32(value)
    write_safetensors(os.path.join(folder, name + ".golden.safetensors"), golden)


def main():
    folder = sys.argv[1]
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        judge(folder, os.path.basename(path)[: -len(".json")])


if __name__ == "__main__":
    main()
