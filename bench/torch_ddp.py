#!/usr/bin/python3
"""PyTorch's side of bench/cluster: one worker of plain DistributedDataParallel training by Gloo.

    torch_ddp.py NET --batch B --input CxHxW --classes K --layout nchw|channels_last --seconds S
                 --rank R --workers N --meet ADDRESS:PORT --interface DEVICE

Computes with one thread on random images. Rank 0 decides after a warm-up how many steps make S
seconds; then all take them. Every worker prints one JSON object. step_seconds is the median over
windows of at least a second of the mean step: what the events of a run of Motley tell as well.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import time

sys.dont_write_bytecode = True
import torch  # noqa: E402
import torch.distributed  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cluster_hosts import counters  # noqa: E402
from cluster_hosts.figures import windows  # noqa: E402
from torch_step import NETS  # noqa: E402

WARM_UP_STEPS = 3
FEWEST_STEPS = 3
DEADLINE = datetime.timedelta(seconds=300)


class Stepper:
    """Whole training steps: forward, backward with the all-reduce, update."""

    def __init__(self, args):
        torch.manual_seed(1 + args.rank)
        net = NETS[args.net](num_classes=args.classes).train()
        shape = [int(size) for size in args.input.split("x")]
        self.images = torch.randn(args.batch, *shape)
        self.labels = torch.randint(args.classes, (args.batch,))
        if args.layout == "channels_last":
            net = net.to(memory_format=torch.channels_last)
            self.images = self.images.to(memory_format=torch.channels_last)
        self.parameters = sum(parameter.numel() for parameter in net.parameters())
        self.net = torch.nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(
            self.net.parameters(), lr=args.learning_rate, momentum=args.momentum
        )

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def agreed_steps(stepper, seconds):
    """How many steps make so many seconds, as rank 0 sees it, after a warm-up."""
    stepper.step()
    start = time.monotonic()
    for _ in range(WARM_UP_STEPS):
        stepper.step()
    step_seconds = (time.monotonic() - start) / WARM_UP_STEPS
    steps = torch.tensor([max(FEWEST_STEPS, round(seconds / step_seconds))])
    torch.distributed.broadcast(steps, src=0)
    return int(steps.item())


def measure(stepper, args):
    def counts():
        sent, _ = counters.namespace_bytes("self", args.interface)
        return sent, time.process_time(), counters.machine_seconds()

    steps = agreed_steps(stepper, args.seconds)
    torch.distributed.barrier()
    before = counts()
    instants = [time.monotonic()]
    for _ in range(steps):
        stepper.step()
        instants.append(time.monotonic())
    torch.distributed.barrier()  # what a neighbour still had to send counts as well
    sent, cpu, machine = ((now - then) / steps for now, then in zip(counts(), before))
    means = windows(instants)
    return {
        "steps": steps,
        "step_seconds": statistics.median(means),
        "windows": means,
        "sent_bytes": sent,
        "cpu_seconds": cpu,
        "machine_seconds": machine,
    }


def parse_arguments():
    parser = argparse.ArgumentParser(description="one worker of DistributedDataParallel training")
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--batch", type=int, required=True, help="of this worker")
    parser.add_argument("--input", required=True, metavar="CxHxW")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--layout", choices=("nchw", "channels_last"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--meet", required=True, metavar="ADDRESS:PORT", help="of rank 0")
    parser.add_argument("--interface", required=True)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--momentum", type=float, default=0.9)
    return parser.parse_args()


def main():
    args = parse_arguments()
    os.environ["GLOO_SOCKET_IFNAME"] = args.interface
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{args.meet}",
        rank=args.rank,
        world_size=args.workers,
        timeout=DEADLINE,
    )
    stepper = Stepper(args)
    answer = {
        "net": args.net,
        "batch": args.batch,
        "workers": args.workers,
        "layout": args.layout,
        "torch": torch.__version__,
        "parameters": stepper.parameters,
        **measure(stepper, args),
    }
    print(json.dumps(answer))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
