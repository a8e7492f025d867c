"""The parts of ./confirm that judge: verdicts, units, tolerances, time limits of steps. None needs a GPU."""

import json
import math
import pathlib
import sys
import textwrap
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from checks import reference, runner, sheet, table  # noqa: E402
from checks.lockstep import Settings  # noqa: E402
from checks.part1 import beside, values  # noqa: E402

# As nvidia-smi -q -x prints it, cut to some values of one GPU.
SMI = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>580.95.05</driver_version><cuda_version>13.0</cuda_version>
  <gpu id="00000000:1B:00.0">
    <product_name>NVIDIA H200</product_name>
    <pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>
    <fb_memory_usage><total>143771 MiB</total><reserved>615 MiB</reserved><used>0 MiB</used></fb_memory_usage>
    <clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
    <clocks_event_reasons_counters><clocks_event_reasons_counters_sw_power_cap>2500000 us</clocks_event_reasons_counters_sw_power_cap></clocks_event_reasons_counters>
    <gpu_power_readings><average_power_draw>76.22 W</average_power_draw><current_power_limit>N/A</current_power_limit></gpu_power_readings>
    <module_power_readings><current_power_limit>700.00 W</current_power_limit></module_power_readings>
  </gpu>
</nvidia_smi_log>
"""


@pytest.fixture
def report(tmp_path):
    written = sheet.Sheet(tmp_path / "rows.jsonl", 1, "step")
    written.rows = lambda: sheet.read(tmp_path / "rows.jsonl")[0]
    return written


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A program of this name first on the PATH."""

    def make(name, script):
        (tmp_path / "path").mkdir(exist_ok=True)
        program = tmp_path / "path" / name
        program.write_text(script)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")

    return make


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "verdict", "by"),
    [
        (103.0, 100.0, {"relative": 0.05}, "agrees", ""),
        (106.0, 100.0, {"relative": 0.05}, "differs", "+6.0 %"),
        (94.0, 100.0, {"relative": 0.05}, "differs", "-6.0 %"),
        (0.5, 0.0, {"absolute": 1}, "agrees", ""),
        (2.0, 0.0, {"absolute": 1}, "differs", "+2"),
        (math.nan, 1.0, {"absolute": 1}, "differs", "nan"),
        (None, 1.0, {}, "not available", ""),
        (1.0, None, {}, "not available", ""),
    ],
)
def test_a_value_agrees_within_its_tolerance(report, found, expected, tolerance, verdict, by):
    report.compare("x", found, expected, **tolerance)
    (row,) = report.rows()
    assert (row["verdict"], row["by"]) == (verdict, by)


def test_samples_agree_when_nearly_all_of_them_do(report):
    report.samples("most", 19, 20, 1.0, 2.0, "", "r")
    report.samples("too few", 18, 20, 1.0, 2.0, "", "r")
    report.samples("none", 0, 0, 1.0, 2.0, "", "r")
    assert [row["verdict"] for row in report.rows()] == ["agrees", "differs", "differs"]


def test_nvidia_smi_is_read_by_path_with_its_units(tool):
    tool("nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    (gpu,) = reference.smi()
    assert (gpu["product_name"], gpu["driver_version"], gpu["id"]) == ("NVIDIA H200", "580.95.05", "00000000:1B:00.0")
    by_name = {value.name: beside.first_number(gpu, value.smi) for value in values.VALUES if value.smi}
    assert by_name["gpu_memory_total_bytes"] == 143771 * 2**20
    assert by_name["gpu_throttle{reason=sw_power_cap}"] == 1
    assert by_name["gpu_throttle_seconds_total{reason=sw_power_cap}"] == 2.5
    assert by_name["gpu_power_watts"] == 76.22
    assert by_name["gpu_power_limit_watts"] == 700, "the first element says N/A"
    assert by_name["gpu_pcie_width"] == 16
    assert by_name["gpu_sm_clock_hertz"] is None, "it is not in this answer"


def test_a_tool_that_fails_is_no_reference(tool):
    tool("nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'\nexit 9\n")
    assert reference.smi() == []


def test_a_sample_is_held_against_the_readings_around_it(report):
    check = runner.Check(report, None, settings())
    value = values.Value("gpu_power_watts", (), "W", relative=0.03, absolute=3)
    beside.judge(check, value, [(100.0, [90.0, 110.0]), (114.0, [90.0, 110.0]), (100.0, [130.0])], "power", 3, "pynvml")
    (row,) = report.rows()
    assert row["verdict"] == "differs"
    assert (row["found"], row["expected"], row["by"]) == ("100 W", "130 W", "1 of 3 samples, at worst -23.1 %")


def settings(**changed):
    return Settings(**{"quick": True, "simulate": None, "only": (), "root": runner.ROOT, **changed})


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """Replaces the steps by small ones: name to the body of `run(check)`, with a limit in seconds. They run one after the other, or at once."""
    monkeypatch.setattr(runner, "GRACE_S", 1)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    (tmp_path / "checks").symlink_to(HERE.parent / "checks")

    def run(at_once=False, **bodies):
        package = tmp_path / "own"
        package.mkdir()
        for name, (body, _) in bodies.items():
            (package / f"{name}.py").write_text(f"import os, subprocess, sys, time\ndef run(check):\n{textwrap.indent(body, '    ')}\n")
        # The steps' own processes find these modules in the place of part 1.
        script = f"import sys, checks, checks.part1\nchecks.part1.__path__.insert(0, {str(package)!r})\nfrom checks.__main__ import main\nsys.exit(main())\n"
        (tmp_path / "start.py").write_text(script)
        monkeypatch.setattr(runner, "STEPS", tuple(runner.Step(1, name, limit_s, "words") for name, (_, limit_s) in bodies.items()))
        monkeypatch.setattr(runner, "program", lambda: [sys.executable, str(tmp_path / "start.py")])
        run_steps, part = (runner.run_at_once, (1,)) if at_once else (runner.run_part, 1)
        ended_well = run_steps(part, settings(root=tmp_path), tmp_path / "out")
        return ended_well, json.loads((tmp_path / "out/part-1.json").read_text())

    return run


def test_a_step_that_fails_hangs_or_dies_costs_its_own_rows_only(steps):
    began = time.monotonic()
    well, result = steps(
        raises=("check.sheet.equal('before', 1, 1)\nraise RuntimeError('out of luck')", 10),
        hangs=("check.sheet.equal('before', 1, 1)\ntime.sleep(60)", 2),
        dies=("os.kill(os.getpid(), 9)", 10),
        works=("check.sheet.equal('last', 1, 1)\ncheck.sheet.fact('raw', [1])", 10),
    )
    assert not well and time.monotonic() - began < 30
    rows = [(row["step"], row["what"], row["verdict"]) for row in result["rows"]]
    assert rows == [
        ("raises", "before", "agrees"), ("raises", "the step raises", "failed"),
        ("hangs", "before", "agrees"), ("hangs", "the step hangs", "failed"),
        ("dies", "the step dies", "failed"),
        ("works", "last", "agrees"),
    ]  # fmt: skip
    notes = {row["step"]: row["note"] for row in result["rows"] if row["verdict"] == "failed"}
    assert "out of luck" in notes["raises"] and "longer than 2 s" in notes["hangs"] and "-9" in notes["dies"]
    assert [fact["value"] for fact in result["facts"]] == [[1]]


def test_steps_at_once_keep_their_own_rows_and_output(steps, capsys):
    well, result = steps(
        at_once=True,
        waits=("while not (check.root / 'met').exists(): time.sleep(0.01)\ncheck.sheet.equal('waited', 1, 1)", 20),
        meets=("(check.root / 'met').touch()\ncheck.sheet.equal('met', 1, 1)", 20),
        raises=("print('bad luck', file=sys.stderr)\nraise RuntimeError('out of luck')", 20),
    )
    assert not well
    rows = {(row["step"], row["what"], row["verdict"]) for row in result["rows"]}
    assert rows == {("waits", "waited", "agrees"), ("meets", "met", "agrees"), ("raises", "the step raises", "failed")}
    [note] = [row["note"] for row in result["rows"] if row["step"] == "raises"]
    assert "out of luck" in note
    said = capsys.readouterr().out
    for step, row in (("waits", "  agrees        waited: 1 (expected 1)"), ("meets", "  agrees        met: 1 (expected 1)"), ("raises", "  failed        the step raises: ")):
        assert f" 1 {step}: words\n{row}" in said
    assert "\npart 1: 2 agrees, 0 differs, 0 not available, 1 failed; " in said


def test_what_a_step_leaves_behind_is_ended(steps, tmp_path):
    pid_file = tmp_path / "pid"
    body = f"child = subprocess.Popen(['sleep', '300'], env={{'FOLDER': str(check.folder)}}, start_new_session=True)\nopen({str(pid_file)!r}, 'w').write(str(child.pid))"
    steps(leaves=(body, 10))
    status = pathlib.Path(f"/proc/{pid_file.read_text()}/stat")
    deadline = time.monotonic() + 10
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_the_table_shows_differences_and_no_broken_cells():
    row = {"step": "s", "what": "a|b", "verdict": "differs", "found": "1", "expected": "2", "by": "-50.0 %", "note": "two\nlines"}
    described = {"gpu": "1 × NVIDIA H200", "simulated": "", "quick": False, "driver": "580", "torch": "2.11.0", "python": "3.12", "cpus": 16, "kernel": "6", "libc": "glibc 2.39", "revision": "abc"}
    text = table.markdown([{"part": 1, "machine": described, "started": "2026-11-23", "steps": [{"seconds": 3}], "rows": [row]}])
    assert text.startswith("## 1 × NVIDIA H200\n")
    assert "| s | a\\|b | **differs** -50.0 % | 1 | 2 | two lines |" in text
