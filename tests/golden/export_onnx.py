"""ONNX files that Motley did not write, and what PyTorch computes with the same nets.

    export_onnx.py NET FOLDER

exports torchvision's NET (see NETS) in training form, with seeded random weights, as
FOLDER/NET.onnx (opset 13, fixed batch) and FOLDER/NET-14.onnx (opset 14, free batch), and writes
FOLDER/NET.safetensors with, for one batch in training mode and without dropout:

    images, labels           of the batch
    logits, loss             in float64; the loss is the sum over the samples, as a sum of two
                             float32 numbers
    gradient/P               of that loss, computed in float64
    torch_error/P, torch_error/logits    largest error of PyTorch's own float32 result

Where an input of ReLU, ReLU6 or max pooling lies within rounding of the switch, float32
implementations legitimately differ by a whole term. So weights are nudged until no input does.
"""

import argparse
import os
import sys
import warnings

import numpy
import torch
import torch.nn.functional as F
import torchvision

from make_golden import float32, two_floats, write_safetensors

CLASSES = 10
BATCH = 4
IMAGE = (3, 64, 64)
# An input closer to a switch than so many times the layer's own float32 error is too close.
SAFE_DISTANCE = 6.0
MAX_NUDGES = 2000

NETS = {
    "resnet18": torchvision.models.resnet18,
    "mobilenet_v2": torchvision.models.mobilenet_v2,
    "squeezenet1_1": torchvision.models.squeezenet1_1,
    "googlenet": lambda **options: torchvision.models.googlenet(
        aux_logits=False, init_weights=True, **options
    ),
    "shufflenet_v2_x1_0": torchvision.models.shufflenet_v2_x1_0,
}


class Switches:
    """Watches every call of a switching function, also of those that are no modules, and keeps
    track of the convolution that moves each channel of its input."""

    NAMES = ("relu", "hardtanh", "max_pool2d")

    def __init__(self, net):
        self.forget()
        for module in net.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(self.on_conv)
            if isinstance(module, torch.nn.BatchNorm2d):
                module.register_forward_hook(self.on_norm)

    def forget(self):
        self.seen = []  # (function's name, input, its other arguments, origin of the input)
        self.origins = {}  # by id of a tensor: the convolutions of its channels, in order
        self.alive = []  # every tensor that has an id in `origins`
        self.last = None

    def remember(self, tensor, origin):
        self.origins[id(tensor)] = origin
        self.alive.append(tensor)
        return tensor

    def on_conv(self, conv, inputs, output):
        self.last = conv
        self.remember(output, [conv])

    def on_norm(self, norm, inputs, output):
        self.remember(output, self.origin(inputs[0]))

    def origin(self, tensor):
        # A sum is moved by the convolution that ran last.
        return self.origins.get(id(tensor), [self.last])

    def watched(self, name, original):
        def call(x, *args, **options):
            origin = self.origin(x)
            self.seen.append((name, x.detach().clone(), (args, options), origin))
            return self.remember(original(x, *args, **options), origin)

        return call

    def run(self, net, images):
        self.forget()
        originals = {name: getattr(F, name) for name in self.NAMES}
        cat = torch.cat

        def watched_cat(parts, *args, **options):
            origin = [conv for part in parts for conv in self.origin(part)]
            return self.remember(cat(parts, *args, **options), origin)

        try:
            torch.cat = watched_cat
            for name in self.NAMES:
                setattr(F, name, self.watched(name, originals[name]))
            return net(images)
        finally:
            torch.cat = cat
            for name, original in originals.items():
                setattr(F, name, original)


def pool_gaps(x, args, options):
    """For each window, the distance between its largest element and the next smaller one."""
    values = dict(zip(("kernel_size", "stride", "padding", "dilation", "ceil_mode"), args))
    values.update(options)
    kernel, stride, pad = values["kernel_size"], values["stride"], values["padding"]
    more = kernel if values.get("ceil_mode") else 0  # windows that hang over
    padded = F.pad(x, (pad, pad + more) * 2, value=-float("inf"))
    windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride).flatten(4)
    best = windows.amax(dim=4, keepdim=True)
    # Equal elements are copies of one, made by an overlapping pool before, or zeros of the ReLU
    # before; whichever of them is taken, the gradient ends at the same place.
    rest = windows.masked_fill(windows == best, -float("inf")).amax(dim=4)
    gaps = best[..., 0] - rest
    # A window of padding alone belongs to nobody.
    return gaps.masked_fill((best[..., 0] == 0) | gaps.isnan(), float("inf"))


def distances(name, x, args, options):
    """For each element (or window), the smallest change of an input that switches it."""
    if name == "max_pool2d":
        return pool_gaps(x, args, options)
    if name == "hardtanh":
        return torch.minimum(x.abs(), (x - 6.0).abs())
    return x.abs()


def first_close(switches32, switches64):
    """[(convolution, its channels to nudge)] for the first close inputs; empty: there are none."""
    for (name, x32, _, convs), (_, x64, (args, options), _) in zip(
        switches32.seen, switches64.seen
    ):
        error = (x32.double() - x64).square().mean().sqrt()
        close = distances(name, x64, args, options) <= SAFE_DISTANCE * error
        if close.any():
            channels = close.flatten(2).any(dim=2).any(dim=0)
            return list(zip(convs, channels.split([conv.out_channels for conv in convs])))
    return []


def without_dropout(net):
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return net


class Pair:
    """The same net in float32, which is exported, and in float64, which judges."""

    def __init__(self, make):
        torch.manual_seed(10)
        self.net32 = without_dropout(make(num_classes=CLASSES)).train()
        with torch.no_grad():  # nothing at a special value: gamma is not 1, beta not 0
            for parameter in self.net32.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        self.net64 = without_dropout(make(num_classes=CLASSES)).double().train()
        self.switches32, self.switches64 = Switches(self.net32), Switches(self.net64)

    def forward(self, images):
        self.net64.load_state_dict(self.net32.state_dict())
        return (
            self.switches32.run(self.net32, images),
            self.switches64.run(self.net64, images.double()),
        )

    def nudge(self, images):
        """Moves weights until no input is close to a switch."""
        with torch.no_grad():
            for _ in range(MAX_NUDGES):
                self.forward(images)
                close = first_close(self.switches32, self.switches64)
                if not close:
                    return
                for conv, channels in close:
                    rows = conv.weight[channels]
                    conv.weight[channels] = rows * (1.0 + 0.02 * torch.randn_like(rows))
        sys.exit("no weights were found that keep away from the switches")

    def results(self, images, labels):
        """(logits, sum of the losses, gradients) of the float32 and of the float64 net."""
        found = []
        for net, logits in zip((self.net32, self.net64), self.forward(images)):
            loss = F.cross_entropy(logits, labels, reduction="sum")
            net.zero_grad(set_to_none=True)
            loss.backward()
            gradients = {name: p.grad.detach() for name, p in net.named_parameters()}
            found.append((logits.detach(), loss.item(), gradients))
        return found


def largest_error(single, double):
    return numpy.array([(single.double() - double).abs().max().item()], dtype="<f4")


def export(net, images, path, opset, free_batch):
    warnings.filterwarnings("ignore")
    torch.onnx.export(
        net,
        images,
        path,
        opset_version=opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["images"],
        output_names=["scores"],
        dynamic_axes={"images": {0: "n"}, "scores": {0: "n"}} if free_batch else None,
    )


def main():
    parser = argparse.ArgumentParser(description="ONNX files and gradients by PyTorch")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("folder")
    args = parser.parse_args()

    pair = Pair(NETS[args.net])
    generator = torch.Generator().manual_seed(20)
    images = torch.randn((BATCH, *IMAGE), generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    pair.nudge(images)

    os.makedirs(args.folder, exist_ok=True)
    stem = os.path.join(args.folder, args.net)
    export(pair.net32, images, stem + ".onnx", 13, free_batch=False)
    export(pair.net32, images, stem + "-14.onnx", 14, free_batch=True)

    (logits32, _, gradients32), (logits64, loss64, gradients64) = pair.results(images, labels)
    arrays = {
        "images": float32(images),
        "labels": float32(labels),
        "logits": float32(logits64),
        "loss": two_floats(loss64),
        "torch_error/logits": largest_error(logits32, logits64),
    }
    for name, gradient in gradients64.items():
        arrays["gradient/" + name] = float32(gradient)
        arrays["torch_error/" + name] = largest_error(gradients32[name], gradient)
    write_safetensors(stem + ".safetensors", arrays)


if __name__ == "__main__":
    main()
