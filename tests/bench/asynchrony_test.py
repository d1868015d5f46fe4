"""Tests of bench/asynchrony. Quick starts the program named by MOTLEY_PROGRAM."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

PROGRAM = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/asynchrony"
_loader = importlib.machinery.SourceFileLoader("asynchrony", str(PROGRAM))
asynchrony = importlib.util.module_from_spec(importlib.util.spec_from_loader("asynchrony", _loader))
_loader.exec_module(asynchrony)
LONG = asynchrony.LONG


def run_of(rate, momentum, updates, seed=1, diverged=False):
    return {"rate": rate, "momentum": momentum, "seed": seed, "updates": updates,
            "epochs": [[100, 0.5]], "diverged": diverged, "mean_staleness": 15.0}


class Parts(unittest.TestCase):
    def test_updates_between_two_epochs_lie_on_a_line(self):
        epochs = [(100, 0.3), (200, 0.5), (300, 0.7), (400, 0.75)]  # smoothed: 0.3, 0.5, 0.65
        self.assertAlmostEqual(asynchrony.updates_to(0.6, epochs), 200 + 100 * 0.1 / 0.15)
        self.assertIsNone(asynchrony.updates_to(0.6, epochs[:3]))
        self.assertEqual(asynchrony.updates_to(0.6, [(100, 0.6)]), 100)
        self.assertIsNone(asynchrony.updates_to(0.6, [(100, 0.59)]))
        self.assertIsNone(asynchrony.updates_to(0.6, []))

    def test_one_lucky_epoch_is_not_the_target(self):
        self.assertIsNone(asynchrony.updates_to(0.6, [(100, 0.3), (200, 0.65), (300, 0.4), (400, 0.5)]))

    def test_a_run_that_only_guesses_is_over_after_three_epochs(self):
        self.assertFalse(asynchrony.is_over([(1, 0.1), (2, 0.1)], LONG, None))
        self.assertTrue(asynchrony.is_over([(1, 0.1), (2, 0.1), (3, 0.1)], LONG, None))
        self.assertFalse(asynchrony.is_over([(1, 0.1), (2, 0.3), (3, 0.1)], LONG, None))

    def test_a_run_of_the_first_seed_is_over_when_it_is_far_behind_the_best(self):
        best = {**run_of(0.01, 0.0, 700), "epochs": [(100 * i, 0.09 * i) for i in range(1, 9)]}
        runs = {"a": run_of(0.1, 0.9, 900), "b": best, "c": run_of(0.1, 0.0, None)}
        leader = asynchrony.leader_of(runs, 1)
        self.assertIs(leader, best)
        self.assertIsNone(asynchrony.leader_of(runs, 2))
        self.assertIsNone(asynchrony.leader_of({"c": runs["c"]}, 1))

        def run(behind, epochs):
            return [(100 * i, 0.09 * i - behind) for i in range(1, epochs + 1)]
        self.assertFalse(asynchrony.is_over(run(0.07, 4), LONG, leader))  # its smoothed fourth is not known
        self.assertTrue(asynchrony.is_over(run(0.07, 5), LONG, leader))
        self.assertFalse(asynchrony.is_over(run(0.07, 5), LONG, None))
        self.assertFalse(asynchrony.is_over(run(0.05, 5), LONG, leader))
        slow = [(100 * i, 0.59) for i in range(1, 12)]
        self.assertFalse(asynchrony.is_over(slow[:10], LONG, leader))
        self.assertTrue(asynchrony.is_over(slow, LONG, leader))

    def test_a_run_that_has_reached_the_target_is_over(self):
        reached = [(1, 0.5), (2, 0.62), (3, 0.7)]
        self.assertTrue(asynchrony.is_over(reached, LONG, None))
        self.assertFalse(asynchrony.is_over(reached[:2], LONG, None))

    def test_a_watched_program_that_hangs_without_learning_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            events = pathlib.Path(folder) / "events.jsonl"
            line = json.dumps({"event": "epoch", "step": 1, "accuracy": 0.1}) + "\n"
            events.write_text(3 * line + '{"event": "ep')
            done = asynchrony.watch(["sleep", "100"], events, lambda epochs: len(epochs) == 3)
            self.assertLess(done.returncode, 0)

    def test_the_best_has_the_fewest_updates_and_has_reached_the_target(self):
        runs = {"a": run_of(0.1, 0.9, 500), "b": run_of(0.01, 0.0, 300),
                "c": run_of(0.1, 0.0, None, diverged=True), "d": run_of(0.01, -0.3, 200)}
        self.assertEqual(asynchrony.best(runs, [0.0, 0.9]), (0.01, 0.0))
        self.assertEqual(asynchrony.best(runs, [0.0, 0.9, -0.3]), (0.01, -0.3))
        self.assertIsNone(asynchrony.best(runs, [0.6]))

    def test_the_table_has_every_run_and_the_medians_of_the_winners(self):
        setting = {**asynchrony.QUICK, "rates": [0.1], "positive": [0.0, 0.9], "negative": [-0.3]}
        runs = {str(i): one for i, one in enumerate([
            run_of(0.1, 0.9, None, diverged=True), run_of(0.1, 0.0, 400), run_of(0.1, -0.3, 300),
            run_of(0.1, -0.3, 320, seed=2), run_of(0.1, -0.3, 340, seed=3),
            {**run_of(0.1, "rule", 310), "explicit": -0.04}])}
        text = asynchrony.table(setting, runs)
        self.assertIn("| 0.1 | 300 | 400 | diverged | 310 |", text)
        self.assertIn("| the best | 0.1 | -0.3 | 320 | 300, 320, 340 |", text)
        self.assertIn("| momentum 0.9 | | | not reached | |", text)
        self.assertIn("-0.04", text)
        xml.etree.ElementTree.fromstring(asynchrony.drawing(setting, runs))
        self.assertIn("Not every kind", asynchrony.verdict(setting, runs))
        runs["0"] = run_of(0.1, 0.9, 800)
        self.assertIn("saves 2.00x", asynchrony.verdict(setting, runs))
        self.assertIn("another 1.25x", asynchrony.verdict(setting, runs))
        self.assertIn("needs 0.97x", asynchrony.verdict(setting, runs))

    def test_results_of_another_experiment_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "results.json"
            asynchrony.Results(file, {"groups": 4}).add("a", run_of(0.1, 0.0, 1))
            self.assertEqual(len(asynchrony.Results(file, {"groups": 4}).runs), 1)
            with self.assertRaises(asynchrony.Failed):
                asynchrony.Results(file, {"groups": 5})


class Quick(unittest.TestCase):
    def test_the_quick_form_finishes_and_goes_on_where_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder) / "results.json"
            command = [str(PROGRAM), "--quick", "--motley", os.environ["MOTLEY_PROGRAM"],
                       "--results", str(results), "--docs", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240)
            self.assertEqual(done.returncode, 0, done.stderr)
            runs = json.loads(results.read_text())["runs"]
            self.assertEqual(len(runs), 4)
            rule = next(one for one in runs.values() if one["momentum"] == "rule")
            self.assertAlmostEqual(rule["explicit"], 0.15, delta=0.1)
            self.assertAlmostEqual(rule["mean_staleness"], 3.0, delta=0.4)
            self.assertIn("| 0.02 |", (pathlib.Path(folder) / "asynchrony-momentum.md").read_text())
            again = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual((again.returncode, again.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
