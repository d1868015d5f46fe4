"""Tests of bench/cluster. Hosts and Quick need root; Quick starts the program named by
MOTLEY_PROGRAM, and PyTorch. Without root these end with exit code 77, except when CI=true."""

import array
import io
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
from cluster_hosts import counters, data, figures, network, workspace  # noqa: E402
from cluster_hosts.figures import Reading, Readings  # noqa: E402
from cluster_hosts.programs import Crew, Failed  # noqa: E402

NEED_ROOT = {"Hosts", "Quick"}
SKIPPED = 77


def reading(step, seconds, sent=0):
    return Reading(step, seconds, [2 * sent, sent], [0, sent], seconds, machine_seconds=2 * seconds)


class Figures(unittest.TestCase):
    def test_the_first_stretch_warms_up(self):
        readings = Readings()
        for step, seconds in ((1, 0.0), (2, 9.0), (4, 11.0), (8, 13.0), (9, 14.0)):
            readings.add(reading(step, seconds, sent=100 * step))
        summary = readings.summary()
        self.assertEqual(summary["steps"], 7)
        self.assertEqual(summary["windows"], [1.0, 0.5, 1.0])
        self.assertEqual(summary["step_seconds"], 1.0)
        self.assertEqual(summary["sent_bytes"], [200.0, 100.0])
        self.assertEqual(summary["received_bytes"], [0.0, 100.0])
        self.assertAlmostEqual(summary["cpu_seconds"], 5.0 / 7)
        self.assertAlmostEqual(figures.cores_of_others(summary), 5.0 / 7)

    def test_the_only_stretch_counts(self):
        readings = Readings()
        readings.add(reading(1, 0.0))
        readings.add(reading(3, 1.0))
        self.assertEqual(readings.summary()["step_seconds"], 0.5)

    def test_an_evaluation_between_two_steps_is_not_measured(self):
        readings = Readings()
        for step, seconds in ((1, 0.0), (2, 1.0), (3, 2.0)):
            readings.add(reading(step, seconds))
        readings.interrupt()
        for step, seconds in ((4, 50.0), (5, 51.0)):
            readings.add(reading(step, seconds))
        self.assertEqual(readings.summary()["windows"], [1.0, 1.0])

    def test_windows_last_at_least_a_second(self):
        self.assertEqual(figures.windows([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]), [0.5, 0.5])
        self.assertEqual(figures.windows([0.0, 3.0, 5.0]), [3.0, 2.0])

    def test_few_short_steps_are_one_window(self):
        self.assertEqual(figures.windows([0.0, 0.1, 0.2]), [0.1])

    def test_bytes_are_those_of_the_protocol(self):
        for path, workers, worker, busiest in (
            ("server", 1, 400, 400),
            ("server", 4, 400, 1600),
            ("gloo", 1, 0, 0),
            ("gloo", 2, 400, 400),
            ("gloo", 4, 600, 600),
        ):
            self.assertEqual(figures.counted_bytes(path, 100, workers), worker)
            self.assertEqual(figures.bytes_on_busiest_cable(path, 100, workers), busiest)

    def test_bytes_on_cables_without_a_limit_cost_the_processors(self):
        for step in (figures.in_turn_seconds(4.0, 2.0),
                     figures.earliest_seconds(4.0, 2.0, forward_share=0.25, limited=False)):
            self.assertEqual(step, 6.0)

    def test_no_gradient_is_sent_before_the_forward_pass_is_over(self):
        self.assertEqual(figures.earliest_seconds(4.0, 5.0, forward_share=0.25, limited=True), 6.0)
        self.assertEqual(figures.earliest_seconds(4.0, 2.0, forward_share=0.25, limited=True), 4.0)

    def test_headers_are_no_difference_and_a_second_copy_is_one(self):
        self.assertTrue(figures.bytes_agree(1.04e8, 1e8))
        self.assertFalse(figures.bytes_agree(2e8, 1e8))
        self.assertFalse(figures.bytes_agree(0.0, 1e8))

    def test_weights_are_compared_with_the_largest(self):
        self.assertAlmostEqual(figures.relative_difference([1.0, -4.0], [1.0, -5.0]), 0.2)

    def test_weights_that_cannot_be_compared_differ_without_bound(self):
        for ours, theirs in (([], []), ([1.0], [1.0, 1.0]), ([math.nan, 1.0], [1.0, 1.0])):
            self.assertEqual(figures.relative_difference(ours, theirs), math.inf)

    def test_parameters_and_running_statistics_of_a_file_are_told_apart(self):
        header = {
            "__metadata__": {"format": "pt"},
            "bn.running_mean": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]},
            "bn.bias": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        }
        text = json.dumps(header).encode()
        floats = array.array("f", [1.0, 2.0, 3.0]).tobytes()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "w.safetensors")
            path.write_bytes(struct.pack("<Q", len(text)) + text + floats)
            parameters, statistics = figures.read_safetensors(path)
        self.assertEqual(list(parameters), [1.0, 2.0])
        self.assertEqual(list(statistics), [3.0])


class Parts(unittest.TestCase):
    def test_rates_are_those_of_tc(self):
        self.assertIsNone(network.parse_rate("none"))
        for text in ("1gbit", "100mbit", "2.5gbit"):
            self.assertEqual(network.parse_rate(text), text)
        for text in ("", "1", "0gbit", "gbit", "1gbit burst 1"):
            with self.assertRaises(ValueError):
                network.parse_rate(text)

    def test_counters_of_an_interface_are_found(self):
        text = (
            "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
            "    lo:  1 2 0 0 0 0 0 0  3 4 0 0 0 0 0 0\n"
            "  eth0:  5 6 0 0 0 0 0 0  7 8 0 0 0 0 0 0\n"
        )
        self.assertEqual(counters.interface_bytes(text, "eth0"), (7, 5))
        with self.assertRaises(KeyError):
            counters.interface_bytes(text, "eth")

    def test_a_subset_has_the_first_images_of_each_class(self):
        with tempfile.TemporaryDirectory() as folder:
            whole, part = pathlib.Path(folder, "whole.tar.gz"), pathlib.Path(folder, "part.tar")
            with tarfile.open(whole, "w:gz") as archive:
                for name in ("train/a", "train/b", "test/a", "test/b", "more/a"):
                    for number in range(3):
                        entry = tarfile.TarInfo(f"{name}/{number}.jpg")
                        entry.size = 1
                        archive.addfile(entry, io.BytesIO(b"%d" % number))
            data.write_subset(whole, part, train_per_class=2, test_per_class=1)
            with tarfile.open(part) as archive:
                names = archive.getnames()
        self.assertEqual(
            sorted(names),
            ["test/a/0.jpg", "test/b/0.jpg", "train/a/0.jpg", "train/a/1.jpg", "train/b/0.jpg",
             "train/b/1.jpg"],
        )


    def test_only_folders_of_runs_that_are_gone_are_removed(self):
        ended = subprocess.Popen(["true"])
        ended.wait()
        with tempfile.TemporaryDirectory() as folder:
            parent = pathlib.Path(folder)
            for name in (f"{workspace.PREFIX}{ended.pid}-x", f"{workspace.PREFIX}{os.getpid()}-x",
                         f"{workspace.PREFIX}y-z", "other"):
                (parent / name / "below").mkdir(parents=True)
            workspace.remove_leftovers(parent)
            self.assertEqual(
                sorted(path.name for path in parent.iterdir()),
                sorted([f"{workspace.PREFIX}{os.getpid()}-x", f"{workspace.PREFIX}y-z", "other"]),
            )


class Hosts(unittest.TestCase):
    def test_what_a_host_sends_is_counted_on_both_ends_of_the_cable(self):
        program = (
            "import socket, sys\n"
            "s = socket.create_server((sys.argv[1], 5000)); s.settimeout(20)\n"
            "print('ready', flush=True)\n"
            "c, _ = s.accept(); c.settimeout(20)\n"
            "while c.recv(1 << 16): pass\n"
        )
        sender = (
            "import socket, sys\n"
            "s = socket.create_connection((sys.argv[1], 5000), 20)\n"
            "s.sendall(bytes(1000000))\n"
        )
        with network.Network(2, "1gbit") as hosts, tempfile.TemporaryDirectory() as folder:
            one, other = hosts.hosts
            sent, received = one.counters()[0], other.counters()[1]
            with Crew(folder) as crew:
                command = [sys.executable, "-c", program, other.address]
                receiver = crew.start("receiver", other, command, {}, keep_output=True)
                receiver.stdout.readline()
                crew.start("sender", one, [sys.executable, "-c", sender, other.address], {})
                crew.wait(30)
            self.assertAlmostEqual(one.counters()[0] - sent, 1e6, delta=5e4)
            self.assertAlmostEqual(other.counters()[1] - received, 1e6, delta=5e4)

    def test_a_process_that_fails_is_quoted_and_the_others_are_ended(self):
        with network.Network(1, None) as hosts, tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(Failed, "bad ended with exit code 3: why"):
                with Crew(folder) as crew:
                    idle = crew.start("idle", hosts.hosts[0], ["sleep", "60"], {})
                    bad = crew.start("bad", hosts.hosts[0], ["sh", "-c", "echo why; exit 3"], {})
                    bad.wait(timeout=30)
                    crew.check()
            self.assertIsNotNone(idle.returncode)

    def test_nothing_is_left_when_the_program_is_killed(self):
        program = (
            f"import sys; sys.path.insert(0, {str(BENCH)!r})\n"
            "import time\n"
            "from cluster_hosts.network import Network\n"
            "with Network(2, '1gbit') as network:\n"
            "    process = network.hosts[0].start(['sleep', '60'])\n"
            "    print(process.pid, *(host.pid for host in network.hosts), flush=True)\n"
            "    time.sleep(60)\n"
        )
        for ending in (signal.SIGINT, signal.SIGKILL):
            child = subprocess.Popen(
                [sys.executable, "-B", "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            left = [pathlib.Path("/proc", pid) for pid in child.stdout.readline().split()]
            self.assertEqual(len(left), 3)
            self.assertTrue(all(path.exists() for path in left))
            child.send_signal(ending)
            child.wait(timeout=30)
            child.stdout.close()
            end = time.monotonic() + 30
            while any(path.exists() for path in left) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertFalse([path for path in left if path.exists()], ending)


class Quick(unittest.TestCase):
    def test_two_hosts_give_the_weights_of_one_device_and_send_the_bytes_that_are_counted(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "answer.json")
            command = [BENCH / "cluster", "--quick", "--motley", os.environ["MOTLEY_PROGRAM"]]
            done = subprocess.run(
                [*command, "--json", file], capture_output=True, text=True, timeout=240
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            answer = json.loads(file.read_text())
        self.assertEqual(answer["failures"], {})
        (row,) = answer["speed"]
        self.assertEqual((row["net"], row["workers"], row["floats"]), ("lenet", 2, 431080))
        for name, program in row["programs"].items():
            self.assertIn(name, ("gloo", "server", "ddp"))
            self.assertGreater(program["step_seconds"], 0.0)
            self.assertGreater(program["in_turn_seconds"], 0.0)
        self.assertEqual({result["path"] for result in answer["equality"]}, {"gloo", "server"})
        for result in answer["equality"]:
            self.assertLess(result["difference"], 1e-4)
            self.assertLess(100 * result["difference"], result["moved"])
            self.assertTrue(result["valid"], result)
        self.assertIn("| lenet | 2 | Motley, Gloo |", done.stdout)
        self.assertIn("Gloo against DDP", done.stdout)


if __name__ == "__main__":
    if NEED_ROOT.intersection(sys.argv) and os.geteuid() != 0 and os.environ.get("CI") != "true":
        print("skipped: network namespaces need root")
        sys.exit(SKIPPED)
    unittest.main()
