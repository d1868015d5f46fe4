#!/usr/bin/python3
"""PyTorch's side of bench/vs_torch: whole training steps of one net in one configuration.

    torch_step.py NET --batch B --input CxHxW --classes K --threads T --layout nchw|channels_last
                  --seconds S [--start DIR] [--learning-rate R] [--momentum M]

Prints one JSON object. images_per_second is the median of five windows, as in `motley bench`.
With --start the net begins with DIR/weights.safetensors, trains on DIR/batch.safetensors (both
written by `motley bench --save DIR`), has its dropout off, and `losses` are those of the first
steps. Without it weights and images are random.
"""

import argparse
import collections
import json
import os
import resource
import statistics
import struct
import time

import torch
import torchvision

# As in `motley bench`.
WINDOWS = 5
WARM_UP_SECONDS = 0.5
LOSS_STEPS = 5


def lenet(num_classes):
    """Caffe's 20/50/500 net for 28x28 images."""
    nn = torch.nn
    layers = {
        "conv1": nn.Conv2d(1, 20, 5),
        "pool1": nn.MaxPool2d(2, 2),
        "conv2": nn.Conv2d(20, 50, 5),
        "pool2": nn.MaxPool2d(2, 2),
        "flatten": nn.Flatten(),
        "ip1": nn.Linear(800, 500),
        "relu1": nn.ReLU(inplace=True),
        "ip2": nn.Linear(500, num_classes),
    }
    return nn.Sequential(collections.OrderedDict(layers))


NETS = {
    "lenet": lenet,
    "alexnet": torchvision.models.alexnet,
    "mobilenet_v2": torchvision.models.mobilenet_v2,
    "resnet18": torchvision.models.resnet18,
    "squeezenet1_1": torchvision.models.squeezenet1_1,
}


def read_safetensors(path, places):
    """Fills the float tensors `places` by name. Straight into them: a copy of the file would count
    as PyTorch's memory. Every array of the file must have a place, and every place an array."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        if header.keys() != places.keys():
            raise SystemExit(f"{path}: other names: {sorted(header.keys() ^ places.keys())}")
        for name, entry in header.items():
            tensor = places[name]
            if entry["dtype"] != "F32" or entry["shape"] != list(tensor.shape):
                raise SystemExit(f"{path}: {name} is {entry}, not {list(tensor.shape)} floats")
            file.seek(8 + length + entry["data_offsets"][0])
            if file.readinto(memoryview(tensor.numpy()).cast("B")) != 4 * tensor.numel():
                raise SystemExit(f"{path}: {name} is cut off")


def load_weights(net, path):
    state = net.state_dict()
    read_safetensors(
        path, {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    )


def load_batch(images, labels, path):
    as_floats = torch.empty(labels.shape)
    read_safetensors(path, {"images": images, "labels": as_floats})
    labels.copy_(as_floats)


def switch_dropout_off(net):
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


class Stepper:
    """Whole training steps: forward, backward, update."""

    def __init__(self, args):
        self.net = NETS[args.net](num_classes=args.classes).train()
        shape = [int(size) for size in args.input.split("x")]
        self.images = torch.randn(args.batch, *shape)
        self.labels = torch.randint(args.classes, (args.batch,))
        if args.start:
            load_weights(self.net, os.path.join(args.start, "weights.safetensors"))
            load_batch(self.images, self.labels, os.path.join(args.start, "batch.safetensors"))
            switch_dropout_off(self.net)
        if args.layout == "channels_last":
            self.net = self.net.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=args.learning_rate, momentum=args.momentum
        )

    def step(self):
        """The mean loss over the batch, before the update."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def measure(self, seconds):
        """Images per second over at least `seconds` and one step."""
        start = time.monotonic()
        steps = 0
        while True:
            self.step()
            steps += 1
            elapsed = time.monotonic() - start
            if elapsed >= seconds:
                return steps * len(self.labels) / elapsed


def peak_rss_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def parse_arguments():
    parser = argparse.ArgumentParser(description="training speed of PyTorch")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--input", required=True, metavar="CxHxW")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--layout", choices=("nchw", "channels_last"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--start", metavar="DIR")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--momentum", type=float, default=0.9)
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)
    stepper = Stepper(args)
    losses = [stepper.step() for _ in range(LOSS_STEPS)]
    stepper.measure(WARM_UP_SECONDS)
    cpu_before, before = time.process_time(), time.monotonic()
    rates = sorted(stepper.measure(args.seconds / WINDOWS) for _ in range(WINDOWS))
    busy_cores = (time.process_time() - cpu_before) / (time.monotonic() - before)
    median = statistics.median(rates)
    answer = {
        "net": args.net,
        "batch": args.batch,
        "input": args.input,
        "classes": args.classes,
        "threads": args.threads,
        "layout": args.layout,
        "torch": torch.__version__,
        "learning_rate": args.learning_rate,
        "momentum": args.momentum,
        "losses": losses if args.start else None,
        "images_per_second": median,
        "images_per_second_spread": (rates[-1] - rates[0]) / median,
        "busy_cores": busy_cores,
        "peak_rss_mb": peak_rss_mb(),
    }
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
