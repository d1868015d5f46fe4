"""Tests of bench/chaos and bench/soak. Quick starts the program named by MOTLEY_PROGRAM; as root
its workers have network namespaces."""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
from chaos_parts import faults, growth, ledger, recovery  # noqa: E402
from chaos_parts.cluster import LineReader, Mark, parse_line  # noqa: E402
from chaos_parts.recovery import Fault  # noqa: E402


def step(time, number=1):
    return Mark(time, "step", number, None, "")


def about(time, what, worker="w1"):
    return Mark(time, what, None, worker, "")


def worker(name, working=True, disturbed="", alive=True):
    return types.SimpleNamespace(name=name, working=working, disturbed=disturbed, alive=alive)


class Plan(unittest.TestCase):
    def test_a_seed_gives_the_same_plan_again_and_another_seed_another(self):
        one = faults.plan(1, 100, can_cut=True, with_coordinator=True)
        self.assertEqual(one, faults.plan(1, 100, can_cut=True, with_coordinator=True))
        self.assertNotEqual(one, faults.plan(2, 100, can_cut=True, with_coordinator=True))

    def test_what_is_not_possible_is_not_planned(self):
        kinds = {a.kind for a in faults.plan(1, 500, can_cut=False, with_coordinator=False)}
        self.assertEqual(kinds, {"kill", "freeze", "blink", "leave", "add"})

    def test_a_quick_run_kills_freezes_and_cuts(self):
        for seed in range(100):
            actions = faults.plan(seed, 12, can_cut=True, with_coordinator=False, form="quick")
            self.assertEqual({a.kind for a in actions[:3]}, {"kill", "freeze", "cut"})

    def test_what_is_given_up_after_two_heartbeats_lasts_longer(self):
        for action in faults.plan(1, 1000, can_cut=True, with_coordinator=True):
            if action.kind in ("freeze", "cut"):
                self.assertGreater(action.hold, 3.0)
            if action.kind == "blink":
                self.assertLessEqual(action.hold, 1.0)


class Victim(unittest.TestCase):
    def test_the_last_one_that_works_is_left_alone(self):
        workers = [worker("a"), worker("b", working=False), worker("c", disturbed="cut")]
        for pick in (0.0, 0.5, 0.99):
            self.assertEqual(faults.choose_victim(workers, pick).name, "b")
        self.assertIsNone(faults.choose_victim([worker("a"), worker("b", alive=False)], 0.5))

    def test_nobody_is_harmed_while_nobody_works(self):
        self.assertIsNone(faults.choose_victim([worker("a", working=False)], 0.5))

    def test_everybody_may_be_picked_while_two_work(self):
        workers = [worker("a"), worker("b"), worker("c", working=False)]
        names = {faults.choose_victim(workers, pick).name for pick in (0.0, 0.4, 0.9)}
        self.assertEqual(names, {"a", "b", "c"})


class Terminal(unittest.TestCase):
    def test_lines_that_are_drawn_over_are_cut_wherever_a_read_ends(self):
        shown = b"a\r\n\repoch 1  step 5  loss 1\x1b[K\repoch 1  step 6\x1b[K\r\x1b[Kb\r\n"
        expected = ["a", "epoch 1  step 5  loss 1", "epoch 1  step 6", "b"]
        for size in range(1, len(shown)):
            reader = LineReader()
            lines = []
            for begin in range(0, len(shown), size):
                lines += reader.take(shown[begin : begin + size])
            self.assertEqual(lines, expected)

    def test_what_the_coordinator_tells_is_understood(self):
        for text, what, who in (
            ("w3 joined from ipv4:10.99.0.4:5 (native, 1 thread); 4 work now", "joined", "w3"),
            ("w3 (ipv4:10.99.0.4:5) is lost: no sign of life for 2.1 s; 3 go on", "lost", "w3"),
            ("w3 left; 3 go on", "left", "w3"),
            ("epoch 2  test loss 0.1000  test acc 0.9700", "epoch", None),
            ("waiting for 1 worker", "other", None),
        ):
            mark = parse_line(1.5, text)
            self.assertEqual((mark.time, mark.what, mark.worker), (1.5, what, who))
        self.assertEqual(parse_line(0.0, "epoch 1/5  step 17/40  loss 1.0").step, 17)


class Recovery(unittest.TestCase):
    def judged(self, some, marks):
        recovery.judge(some, marks)
        return some

    def test_a_step_before_the_loss_was_named_does_not_count(self):
        marks = [step(0.9), step(1.05), about(1.4, "lost"), step(1.6)]
        (fault,) = self.judged([Fault(1.0, "kill", "w1", True)], marks)
        self.assertAlmostEqual(fault.seconds, 0.6)
        self.assertAlmostEqual(fault.named, 1.4)

    def test_a_fault_that_ends_before_anybody_noticed_counts_from_its_end(self):
        marks = [step(1.01), step(1.9), about(9.0, "lost"), step(9.5)]
        (fault,) = self.judged([Fault(1.0, "blink", "w1", True, healed=1.7)], marks)
        self.assertAlmostEqual(fault.seconds, 0.9)
        self.assertEqual(fault.named, math.inf)

    def test_going_on_too_late_or_never_is_told(self):
        for end, is_late in (([step(1.9)], False), ([step(3.0)], True), ([], True)):
            (fault,) = self.judged([Fault(1.0, "kill", "w1", True)], [about(1.5, "lost"), *end])
            self.assertEqual(recovery.late([fault]), [fault] if is_late else [])

    def test_faults_that_overlap_have_until_the_last_of_their_goals(self):
        freeze, kill = Fault(1.0, "freeze", "w1", True), Fault(1.5, "kill", "w2", True)
        marks = [about(1.6, "lost", "w2"), about(3.1, "lost"), step(3.9)]
        self.judged([freeze, kill], marks)
        self.assertFalse(freeze.alone or kill.alone)
        self.assertAlmostEqual(kill.allowed, 2.5)  # until 4.0
        self.assertEqual(recovery.late([freeze, kill]), [])

    def test_one_step_and_one_test_are_allowed_as_they_take_without_faults(self):
        marks = [step(0.0, 1), step(0.4, 3), step(0.6, 4), about(1.6, "epoch", None)]
        marks += [step(1.8, 5), about(2.1, "lost"), about(4.0, "epoch", None), step(4.2, 6)]
        (fault,) = self.judged([Fault(2.0, "kill", "w1", True)], marks)
        self.assertAlmostEqual(fault.allowed, 1.0 + 0.2 + 1.0)

    def test_a_freeze_that_the_end_of_the_run_cut_short_is_not_measured(self):
        marks = [step(1.1), step(2.5)]
        for healed, measured in ((2.0, []), (4.5, ["freeze"])):
            some = self.judged([Fault(1.0, "freeze", "w1", True, healed=healed)], marks)
            self.assertEqual([row["kind"] for row in recovery.by_kind(some)], measured)

    def test_a_worker_that_stays_away_is_told(self):
        fault = Fault(1.0, "freeze", "w1", True, healed=5.0)
        away = [about(3.0, "lost"), step(3.1), step(50.0)]
        back = [about(3.0, "lost"), step(3.1), about(8.0, "joined"), step(50.0)]
        for marks, missing in ((away, ["w1"]), (back, []), (away[:2], [])):
            self.judged([fault], marks)
            self.assertEqual(recovery.not_back([fault], marks, 20.0), missing)

    def test_a_quantile_is_one_of_the_values(self):
        self.assertEqual(recovery.quantile(range(1, 101), 0.99), 99)
        self.assertEqual(recovery.quantile([3.0, 1.0, 2.0], 0.5), 2.0)


class Ledger(unittest.TestCase):
    SIZE, BATCH = 1000, 256  # four steps, the last of 232

    def events(self):
        fields = [("run_started", 0, 0), ("step", 3, 768), ("epoch", 4, 1000), ("step", 6, 1512)]
        return [
            {"event": name, "step": step, "samples": samples, "epoch": 0, "complete": True,
             "again": False}
            for name, step, samples in fields
        ]

    def wrong(self, events):
        return ledger.check_events(events, self.SIZE, self.BATCH)

    def test_whole_epochs_and_rests_are_counted(self):
        self.assertEqual(ledger.samples_after(4, 1000, 256), 1000)
        self.assertEqual(ledger.samples_after(6, 1000, 256), 1512)
        self.assertEqual(self.wrong(self.events()), [])

    def test_a_sample_too_few_or_too_many_is_told(self):
        for difference in (-1, 1):
            events = self.events()
            events[1]["samples"] += difference
            self.assertEqual(len(self.wrong(events)), 1)

    def test_a_step_that_ended_short_moves_its_samples_and_loses_none(self):
        short = [{"event": "short_step", "step": 2, "samples": "200", "of": "256"}]
        late = self.events()
        late[1]["samples"] = 712  # 56 of them come later
        late[2]["step"], late[3]["step"] = 5, 7  # so the epoch has one step more
        self.assertEqual(self.wrong(late[:1] + short + late[1:]), [])
        self.assertTrue(self.wrong(late), "without such a step it would be wrong")
        late[2]["samples"] = 999
        self.assertTrue(self.wrong(late[:1] + short + late[1:]), "an epoch is an epoch")

    def test_an_epoch_that_is_missing_or_ends_twice_is_told(self):
        events = self.events()
        self.assertTrue(self.wrong(events[:3] + [dict(events[2])] + events[3:]))
        events[2]["epoch"] = 1
        self.assertTrue(self.wrong(events))

    def test_what_was_rolled_back_does_not_count(self):
        back = [{"event": "rolled_back", "step": 3, "from_step": 6}]
        again = self.events()
        self.assertEqual(self.wrong(self.events() + back + again[2:]), [])
        self.assertTrue(self.wrong(self.events() + again[2:]))

    def manifest(self, **changed):
        whole = {"step": 6, "samples": 1512, "epoch": 1, "epoch_size": 1000,
                 "committed": [[0, 512]]}
        return ledger.check_manifest({**whole, **changed}, self.SIZE, self.BATCH)

    def test_the_ranges_of_a_checkpoint_are_those_of_its_steps(self):
        self.assertEqual(self.manifest(), [])
        self.assertEqual(self.manifest(committed=[[0, 256], [256, 512]]), [])
        self.assertTrue(self.manifest(committed=[[0, 256], [255, 511]]))
        self.assertTrue(self.manifest(committed=[[0, 256]]))
        self.assertTrue(self.manifest(step=7))

    def test_a_summary_agrees_with_its_devices(self):
        summary = {"steps": 6, "samples": 1512, "epochs": 1,
                   "devices": [{"samples": 1000}, {"samples": 512}]}
        self.assertEqual(ledger.check_summary(summary, self.events(), 1000, 256), [])
        summary["devices"][0]["samples"] -= 1
        self.assertTrue(ledger.check_summary(summary, self.events(), 1000, 256))


class Growth(unittest.TestCase):
    def judge(self, mb=lambda s: 50.0, descriptors=lambda s: 20, threads=lambda s: 9, seconds=300):
        samples = [growth.Sample(s, mb(s), descriptors(s), threads(s)) for s in range(seconds)]
        return growth.judge(samples)

    def test_a_leak_is_told_and_a_warm_up_is_none(self):
        self.assertTrue(self.judge()["flat"])
        self.assertTrue(self.judge(mb=lambda s: 50 + min(s, 50))["flat"])
        leaking = self.judge(mb=lambda s: 50 + s * 2 / 60)
        self.assertAlmostEqual(leaking["mb_per_minute"], 2.0)
        self.assertFalse(leaking["flat"])

    def test_descriptors_that_come_and_go_are_no_leak(self):
        self.assertTrue(self.judge(descriptors=lambda s: 20 + (s % 30 == 0))["flat"])
        self.assertFalse(self.judge(descriptors=lambda s: 20 + s // 100)["flat"])

    def test_a_pool_of_threads_may_breathe_but_not_grow(self):
        self.assertTrue(self.judge(threads=lambda s: 9 + s // 100)["flat"])
        self.assertFalse(self.judge(threads=lambda s: 9 + s // 20)["flat"])

    def test_a_short_life_is_not_judged(self):
        self.assertIsNone(self.judge(seconds=60)["flat"])

    def test_a_process_is_read(self):
        sample = growth.read_process(os.getpid(), 3.0)
        self.assertGreater(sample.rss_mb, 1.0)
        self.assertGreater(sample.descriptors, 2)
        self.assertGreaterEqual(sample.threads, 1)
        self.assertIsNone(growth.read_process(2**22 + 1, 3.0))


class Quick(unittest.TestCase):
    def run_chaos(self, *more):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "answer.json")
            done = subprocess.run(
                [BENCH / "chaos", "--quick", "--motley", os.environ["MOTLEY_PROGRAM"],
                 "--json", file, *more],
                capture_output=True,
                text=True,
                timeout=200,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout, json.loads(file.read_text())

    def test_the_others_go_on(self):
        table, answer = self.run_chaos()
        kinds = {fault["kind"] for fault in answer["faults"]}
        self.assertTrue({"kill", "freeze"} <= kinds, kinds)
        if os.geteuid() == 0:
            self.assertIn("cut", kinds)
        self.assertIn("everything holds", table)


if __name__ == "__main__":
    unittest.main()
