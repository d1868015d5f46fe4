"""Golden training steps, made by PyTorch alone: nothing here knows Motley.

    make_golden.py NET FOLDER [--steps N] [--keep]

trains NET (lenet, resnet18, mobilenet_v2) for N steps of SGD with momentum and weight decay on
random images, and writes one safetensors file per step into FOLDER (step-00.safetensors, ...):

    weights/P, velocity/P    before the step
    buffers/B, buffers_after/B    running statistics of batch norm before and after the step
    images, labels           of the step; the loss is the mean over them
    loss                     in float64, as a sum of two float32 numbers
    gradient/P               computed in float64 from the same weights and images
    continues                1 when weights and velocity are what the previous step led to
    torch_error/P            norm of (PyTorch's float32 gradient - the float64 one), per parameter

The float64 gradient is stored rounded to float32. That adds half a unit in the last place to the
error of whoever is judged by it, which is far below the float32 error of a gradient.

A line with the path is printed when a file is complete. Unless --keep is given the program then
waits until the reader has deleted the file, so that a large net needs the disk space of one step.

ReLU, ReLU6 and max pooling switch: where an input lies within rounding of the switch, float32
implementations legitimately differ by a whole term, not by rounding. Batches with such an input
are drawn again, so that the errors compared are those of arithmetic. mobilenet_v2 is so deep that
nearly every batch has one; there the biases of the batch norm before are nudged instead, and
`continues` is 0: the weights are then not those that the previous step led to.
"""

import argparse
import json
import os
import struct
import sys
import time

import numpy
import torch
import torchvision

LEARNING_RATE = 0.01
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-4
CLASSES = 10
# An input closer to a switch than so many times the layer's own float32 error is too close.
SAFE_DISTANCE = 6.0
READER_PATIENCE_SECONDS = 300.0


class Lenet(torch.nn.Module):
    """Caffe's 20/50/500 net."""

    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 20, 5)
        self.conv2 = torch.nn.Conv2d(20, 50, 5)
        self.ip1 = torch.nn.Linear(800, 500)
        self.ip2 = torch.nn.Linear(500, CLASSES)
        self.pool1 = torch.nn.MaxPool2d(2, 2)
        self.pool2 = torch.nn.MaxPool2d(2, 2)
        self.relu1 = torch.nn.ReLU()

    def forward(self, x):
        x = self.pool2(self.conv2(self.pool1(self.conv1(x))))
        return self.ip2(self.relu1(self.ip1(x.flatten(1))))


def without_dropout(net):
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return net


# name: (constructor, image shape, batch, whether weights are nudged away from switches)
NETS = {
    "lenet": (Lenet, (1, 28, 28), 16, False),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=CLASSES), (3, 32, 32), 8, False),
    "mobilenet_v2": (
        lambda: without_dropout(torchvision.models.mobilenet_v2(num_classes=CLASSES)),
        (3, 32, 32),
        8,
        True,
    ),
}


class Switches:
    """The inputs of all switching layers of a net in its last forward pass."""

    def __init__(self, net):
        self.seen = []  # (switching module, its input, the batch norm that ran last before it)
        self.norm = None
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.register_forward_hook(self.on_norm)
            if isinstance(module, (torch.nn.ReLU, torch.nn.ReLU6, torch.nn.MaxPool2d)):
                module.register_forward_pre_hook(self.on_switch)

    def on_norm(self, module, inputs, output):
        self.norm = module

    def on_switch(self, module, inputs):
        self.seen.append((module, inputs[0].detach().clone(), self.norm))


def distances(module, x):
    """For each element (or window), the smallest change of an input that switches it."""
    if isinstance(module, torch.nn.MaxPool2d):
        kernel, stride, pad = module.kernel_size, module.stride, module.padding
        padded = torch.nn.functional.pad(x, (pad,) * 4, value=-float("inf"))
        windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)
        best = windows.flatten(4).topk(2).values
        # Several zeros are the ReLU's before; whichever of them is taken, its gradient ends there.
        gaps = best[..., 0] - best[..., 1]
        return gaps.masked_fill(best[..., 0] == 0, float("inf"))
    if isinstance(module, torch.nn.ReLU6):
        return torch.minimum(x.abs(), (x - 6.0).abs())
    return x.abs()


def first_close(switches32, switches64):
    """(batch norm of the float32 net, close elements) of the first layer that has some, or None."""
    for (module, x32, norm), (_, x64, _) in zip(switches32.seen, switches64.seen):
        error = (x32.double() - x64).square().mean().sqrt()
        close = distances(module, x64) <= SAFE_DISTANCE * error
        if close.any():
            return norm, close
    return None


class Pair:
    """The same net in float32, which is trained, and in float64, which judges."""

    def __init__(self, make, seed):
        torch.manual_seed(seed)
        self.net32 = make().train()
        with torch.no_grad():  # nothing at a special value: gamma is not 1, beta not 0
            for parameter in self.net32.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        self.net64 = make().double().train()
        self.switches32, self.switches64 = Switches(self.net32), Switches(self.net64)

    def forward(self, images, labels, buffers):
        """The losses of both nets from the same weights and running statistics."""
        self.net32.load_state_dict(buffers, strict=False)
        self.net64.load_state_dict(self.net32.state_dict())
        self.switches32.seen.clear()
        self.switches64.seen.clear()
        cross_entropy = torch.nn.functional.cross_entropy
        return (
            cross_entropy(self.net32(images), labels),
            cross_entropy(self.net64(images.double()), labels),
        )

    def is_close(self):
        return first_close(self.switches32, self.switches64) is not None

    def nudge(self, images, labels, buffers):
        """Moves the biases of batch norms until no input is close to a switch."""
        with torch.no_grad():
            while True:
                self.forward(images, labels, buffers)
                close = first_close(self.switches32, self.switches64)
                if close is None:
                    return
                norm, elements = close
                channels = elements.any(dim=3).any(dim=2).any(dim=0)
                norm.bias[channels] += 0.01 * torch.randn(int(channels.sum()))

    def gradients(self, losses):
        result = []
        for net, loss in zip((self.net32, self.net64), losses):
            net.zero_grad(set_to_none=True)
            loss.backward()
            result.append({k: p.grad.detach() for k, p in net.named_parameters()})
        return result


def running_statistics(net):
    return {k: b.clone() for k, b in net.named_buffers() if not k.endswith("num_batches_tracked")}


def write_safetensors(path, arrays):
    header, offset = {}, 0
    for name, array in arrays.items():
        size = array.size * 4
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for array in arrays.values():
            file.write(array.tobytes())
    os.rename(path + ".part", path)


def float32(tensor):
    return numpy.ascontiguousarray(tensor.detach().numpy().astype("<f4"))


def two_floats(value):
    high = numpy.float32(value)
    return numpy.array([high, numpy.float32(value - float(high))], dtype="<f4")


def draw_batch(pair, shape, batch, may_nudge, buffers, generator):
    """A batch without inputs close to a switch, and both nets' losses for it."""
    while True:
        images = torch.randn((batch, *shape), generator=generator)
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        if may_nudge:
            pair.nudge(images, labels, buffers)
        losses = pair.forward(images, labels, buffers)
        if not pair.is_close():
            return images, labels, losses


def make_step(pair, optimizer, spec, generator):
    """Takes one step and returns what the file of this step holds, and the loss."""
    _, shape, batch, may_nudge = spec
    net = pair.net32
    before = running_statistics(net)
    images, labels, losses = draw_batch(pair, shape, batch, may_nudge, before, generator)
    gradient32, gradient64 = pair.gradients(losses)
    loss = losses[1].item()

    arrays = {"images": float32(images), "labels": float32(labels), "loss": two_floats(loss)}
    arrays["continues"] = numpy.array([0.0 if may_nudge else 1.0], dtype="<f4")
    for name, parameter in net.named_parameters():
        velocity = optimizer.state[parameter].get("momentum_buffer")
        error = (gradient32[name].double() - gradient64[name]).norm().item()
        arrays["weights/" + name] = float32(parameter).copy()
        arrays["velocity/" + name] = float32(
            torch.zeros_like(parameter) if velocity is None else velocity
        ).copy()
        arrays["gradient/" + name] = float32(gradient64[name])
        arrays["torch_error/" + name] = numpy.array([error], dtype="<f4")
    for name, value in before.items():
        arrays["buffers/" + name] = float32(value)
    # The float64 net's, rounded: they do not carry PyTorch's own float32 error.
    for name, value in running_statistics(pair.net64).items():
        arrays["buffers_after/" + name] = float32(value)
    optimizer.step()
    return arrays, loss


def wait_for_reader(path):
    end = time.monotonic() + READER_PATIENCE_SECONDS
    while os.path.exists(path):
        if time.monotonic() > end:
            sys.exit(f"nobody read {path} for {READER_PATIENCE_SECONDS} seconds")
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser(description="golden training steps by PyTorch")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--keep", action="store_true", help="do not wait for a reader")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(20)
    pair = Pair(NETS[args.net][0], seed=10)
    optimizer = torch.optim.SGD(
        pair.net32.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    os.makedirs(args.folder, exist_ok=True)
    for step in range(args.steps):
        path = os.path.join(args.folder, f"step-{step:02}.safetensors")
        arrays, loss = make_step(pair, optimizer, NETS[args.net], generator)
        write_safetensors(path, arrays)
        print(path, flush=True)
        print(f"step {step}: loss {loss:.6f}", file=sys.stderr)
        if not args.keep:
            wait_for_reader(path)


if __name__ == "__main__":
    main()
