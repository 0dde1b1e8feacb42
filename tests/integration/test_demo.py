"""The demo as a user runs it: a fault that is found where it was injected, and a healthy run without an alarm."""

import json
import subprocess
import sys


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "msmon", *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fault_is_found(tmp_path):
    shown = run("demo", "--output", str(tmp_path))
    assert "injected: step 40, layer layers.2.attn.proj" in shown
    assert "60/60" in shown
    first = run("anomalies", "-d", str(tmp_path / "anomaly_detected"), "-k", "1")
    line = next(line for line in first.splitlines() if "layers.2.attn.proj" in line)
    assert line.split()[:2] == ["40", "0"]
    record = next(iter(json.loads((tmp_path / "anomaly_detected" / "anomaly_analyse.json").read_text()).values()))
    assert record["step"] == 40
    assert record["tag_name"].startswith("0:layers.2.attn.proj.weight/")


def test_healthy_run_reports_nothing(tmp_path):
    shown = run("demo", "--no-fault", "--output", str(tmp_path))
    assert "No anomalies." in shown
    assert json.loads((tmp_path / "anomaly_detected" / "rank0" / "anomaly.json").read_text()) == {}


def test_the_text_is_real_and_batches_have_the_documented_shape():
    from msmon.demo.text import batches, tokens

    data = tokens()
    assert len(data) > 400_000
    assert int(data.max()) < 256
    assert bytes(data.tolist()).decode().count(" the ") > 2_000
    first = batches(data, steps=2, size=3, length=5, seed=1)
    assert [batch.shape for batch in first] == [(3, 6), (3, 6)]
