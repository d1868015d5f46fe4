"""Tests of bench/vs_torch. SideBySide starts the program named by MOTLEY_PROGRAM, and PyTorch."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
from side_by_side import figures, plot  # noqa: E402
from side_by_side.programs import Failed, run_json  # noqa: E402

# Takes part in the comparison as if it were Motley, but has computed something else.
WRONG_MOTLEY = """#!/usr/bin/python3
import json, subprocess, sys
answer = json.loads(subprocess.check_output(["{motley}", *sys.argv[1:]]))
answer["losses"][4] *= 1.01
print(json.dumps(answer))
"""


class Figures(unittest.TestCase):
    def test_the_worst_step_counts(self):
        self.assertAlmostEqual(figures.loss_difference([2.0, 1.1], [2.0, 1.0]), 0.1)

    def test_losses_that_do_not_match_differ_without_bound(self):
        for ours, theirs in (([], []), ([1.0], [1.0, 1.0]), ([math.nan], [1.0])):
            self.assertEqual(figures.loss_difference(ours, theirs), math.inf)

    def test_a_line_is_found_again(self):
        intercept, slope = figures.line_fit([1, 4, 16], [5, 11, 35])
        self.assertAlmostEqual(intercept, 3.0)
        self.assertAlmostEqual(slope, 2.0)

    def test_correlation_has_the_sign_of_the_slope(self):
        self.assertAlmostEqual(figures.correlation([1, 2, 3], [2, 4, 6]), 1.0)
        self.assertAlmostEqual(figures.correlation([1, 2, 3], [6, 4, 2]), -1.0)

    def test_a_summary_takes_medians(self):
        rounds = [{"images_per_second": v, "peak_rss_mb": 2 * v} for v in (90.0, 100.0, 120.0)]
        answer = figures.summary(rounds)
        self.assertEqual(answer["images_per_second"], 100.0)
        self.assertEqual(answer["peak_rss_mb"], 200.0)
        self.assertAlmostEqual(answer["spread"], 0.3)

    def test_a_program_that_leaves_cores_idle_loses_less_to_another_one(self):
        self.assertAlmostEqual(figures.fair_part(2.0, 2), 2 / 3)
        self.assertAlmostEqual(figures.fair_part(1.6, 2), 5 / 6)
        self.assertEqual(figures.fair_part(1.0, 2), 1.0)

    def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one(self):
        self.assertAlmostEqual(figures.geometric_mean([4.0, 0.25]), 1.0)


class Plot(unittest.TestCase):
    def test_every_point_and_every_legend_is_drawn(self):
        series = {"one": [(1, 2, "p"), (3, 4, "q")], "two": [(5, 6, "r")]}
        svg = plot.scatter("a < b", "x", "y", series)
        tree = xml.etree.ElementTree.fromstring(svg)
        names = [element.tag.rsplit("}")[-1] for element in tree.iter()]
        self.assertEqual(names.count("circle"), 3 + 2)
        self.assertIn("a < b", [element.text for element in tree.iter()])

    def test_ticks_are_round_and_reach_the_top(self):
        self.assertEqual(plot.ticks(1.0)[-1], 1.0)
        self.assertEqual(plot.ticks(283.0), [0.0, 100.0, 200.0, 300.0])


class Machine(unittest.TestCase):
    def test_a_program_that_does_not_answer_is_killed_at_its_deadline(self):
        with self.assertRaisesRegex(Failed, "no answer within"):
            run_json(["sleep", "60"], {}, deadline=0.2)

    def test_a_program_that_fails_is_quoted(self):
        with self.assertRaisesRegex(Failed, "exit code 3.*why"):
            run_json(["sh", "-c", "echo why >&2; exit 3"], {}, deadline=10)

    def test_no_busy_process_is_left_when_the_program_is_killed(self):
        program = (
            f"import sys; sys.path.insert(0, {str(BENCH)!r})\n"
            "import os, time\n"
            "from side_by_side import machine\n"
            "with machine.busy_core():\n"
            "    print(open(f'/proc/self/task/{os.getpid()}/children').read(), flush=True)\n"
            "    time.sleep(60)\n"
        )
        for ending in (signal.SIGINT, signal.SIGKILL):
            child = subprocess.Popen(
                [sys.executable, "-B", "-c", program],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            busy = pathlib.Path("/proc", child.stdout.readline().strip())
            self.assertTrue(busy.exists())
            child.send_signal(ending)
            child.wait(timeout=30)
            child.stdout.close()
            end = time.monotonic() + 30
            while busy.exists() and time.monotonic() < end:
                time.sleep(0.01)
            self.assertFalse(busy.exists(), ending)


class SideBySide(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.motley = os.environ["MOTLEY_PROGRAM"]

    def run_lenet(self, motley):
        """The exit code, the table and the JSON of the shortest run."""
        file = pathlib.Path(self.folder.name, "answer.json")
        command = [BENCH / "vs_torch", "--rows", "lenet", "--seconds", "0.3", "--rounds", "1"]
        done = subprocess.run(
            [*command, "--motley", motley, "--json", file],
            capture_output=True,
            text=True,
            timeout=240,
        )
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.returncode, done.stdout, json.loads(file.read_text())

    def test_both_programs_take_the_same_steps(self):
        code, table, answer = self.run_lenet(self.motley)
        self.assertEqual(code, 0, table)
        self.assertIn("| lenet | 1x28x28 | 64 |", table)
        self.assertIn("geometric mean", table)
        (row,) = answer["results"]
        self.assertTrue(row["valid"])
        self.assertLess(row["loss_difference"], 1e-3)
        for program in (row["motley"], row["torch"]):
            self.assertGreater(program["images_per_second"], 0.0)
            self.assertGreater(program["peak_rss_mb"], 0.0)
            losses = program["rounds"][0]["losses"]
            self.assertEqual(len(losses), 5)
            self.assertLess(losses[-1], losses[0])

    def test_a_program_that_computes_something_else_is_invalid(self):
        wrong = pathlib.Path(self.folder.name, "wrong")
        wrong.write_text(WRONG_MOTLEY.format(motley=self.motley))
        wrong.chmod(0o755)
        code, table, answer = self.run_lenet(wrong)
        self.assertEqual(code, 1)
        self.assertIn("INVALID", table)
        self.assertFalse(answer["results"][0]["valid"])


if __name__ == "__main__":
    unittest.main()
