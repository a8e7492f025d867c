"""Reports of a script: its own values and the ends of its steps."""

import time

import pytest
from conftest import TIMEOUT_S, Listener, rank_environment

import lockstep_probe
from lockstep_probe.probe import Probe
from lockstep_probe.reports import KNOWN, VALUES_MAX, Reports


def test_many_values_a_step_become_what_the_table_says():
    notes = []
    reports = Reports(notes.append)
    for seconds in (0.1, 0.4, 0.2):
        reports.add({"train_rpc_seconds": seconds, "train_gradient_staleness_steps": round(seconds * 10)})
    for depth in (1, 8, 3):
        reports.add({"train_rpc_buffer_depth": depth})
    taken = reports.take()
    assert taken.pop("train_gradient_staleness_steps") == pytest.approx(7 / 3)
    assert taken == {"train_rpc_seconds": 0.2, "train_rpc_seconds_max": 0.4, "train_rpc_buffer_depth": 8}
    assert (reports.take(), notes) == ({}, [])


def test_what_is_no_known_number_is_noted_and_left_out():
    notes = []
    reports = Reports(notes.append)
    reports.add({"train_rpc_second": 1.0, "train_rpc_seconds": "fast", "train_pipeline_bubble_ratio": 0.5})
    assert reports.take() == {"train_pipeline_bubble_ratio": 0.5}
    assert notes[0].startswith("report() knows no train_rpc_second: it knows train_rpc_seconds, ")
    assert notes[1] == "report() takes numbers, and train_rpc_seconds is a str"


def test_a_script_that_reports_without_end_fills_no_memory():
    reports = Reports(print)
    for _ in range(3 * VALUES_MAX):
        reports.add({name: 1.0 for name in KNOWN})
    assert {len(values) for values in reports._values.values()} == {VALUES_MAX}


def test_nothing_happens_where_the_probe_is_off(monkeypatch):
    monkeypatch.setattr(lockstep_probe, "probe", None)
    lockstep_probe.report(anything="at all")
    lockstep_probe.step("nonsense")


def test_declared_steps_carry_their_numbers_and_the_values_of_their_time(tmp_path, monkeypatch):
    listener = Listener(tmp_path / "socket")
    environ = {**rank_environment(listener.path), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCKSTEP_RESUME_STEP": "2"}
    monkeypatch.setattr(lockstep_probe, "probe", Probe(environ))
    lockstep_probe.report(train_rpc_seconds=0.5)
    lockstep_probe.step()
    lockstep_probe.step(7)
    lockstep_probe.step(7)
    lockstep_probe.step(5)
    lockstep_probe.report(train_rpc_buffer_depth=float("nan"))
    lockstep_probe.step(8)
    deadline = time.monotonic() + TIMEOUT_S
    while len(listener.records) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    listener.close()
    said = [(record["step"], record.get("train_rpc_seconds"), record.get("train_rpc_buffer_depth")) for record in listener.of("step")]
    assert said == [(3, 0.5, None), (7, None, None), (8, None, "NaN")]
