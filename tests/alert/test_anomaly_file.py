"""anomaly.json: one JSON object at any moment, whatever happens to the process that writes it."""

import json
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import time

import pytest

from msmon_alert import AnomalyFile
from msmon_alert.reading import BrokenFileError, RecordReader


def record(number, text="m"):
    tag = f"0:fc{number}.weight/rank0/grad_reduced"
    return {"rank": 0, "step": number, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": number,
            "tag_name": tag, "message": text, "group_mates": [0]}  # fmt: skip


def key(number):
    return f"0:fc{number}.weight/rank0/grad_reduced_step_{number}_call_{number}"


def load(path):
    return json.loads(path.read_text())


def test_valid_from_the_start_and_after_every_write(tmp_path):
    with AnomalyFile(tmp_path / "a" / "rank0") as file:
        assert load(file.path) == {}
        expected = {}
        for number in range(20):
            batch = [record(100 * number + i, "ü\n\"\\'" * number) for i in range(number % 4)]
            file.write(iter(batch))
            expected |= {key(r["step"]): r for r in batch}
            assert load(file.path) == expected
        assert list(load(file.path)) == list(expected)
        assert (file.written, file.failed) == (len(expected), 0)
    file.close()
    assert file.path == tmp_path / "a" / "rank0" / "anomaly.json"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(file.path.parent.stat().st_mode) & 0o027 == 0


def test_a_new_run_begins_anew_and_append_goes_on(tmp_path):
    for numbers, append, expected in (
        ([1, 2], True, [1, 2]),
        ([3], False, [3]),
        ([4], True, [3, 4]),
        ([], True, [3, 4]),
        ([5, 6], True, [3, 4, 5, 6]),
        ([], False, []),
        ([7], True, [7]),
    ):
        with AnomalyFile(tmp_path, append=append) as file:
            file.write(map(record, numbers))
        assert list(load(file.path)) == list(map(key, expected))


def test_the_cost_of_a_write_does_not_grow(tmp_path, monkeypatch):
    written = []
    pwrite = os.pwrite

    def counting(descriptor, data, offset):
        written.append(len(data))
        return pwrite(descriptor, data, offset)

    with AnomalyFile(tmp_path) as file:
        monkeypatch.setattr(os, "pwrite", counting)
        monkeypatch.setattr(os, "read", None)
        for number in range(10_000):
            file.write([record(number)])
    assert len(written) == 10_000
    assert max(written) < min(written) + 20
    assert len(load(file.path)) == 10_000


def test_append_repairs_what_a_torn_write_left(tmp_path):
    with AnomalyFile(tmp_path) as file:
        file.write(map(record, range(3)))
    whole = file.path.read_bytes()
    for cut in range(1, len(whole)):
        file.path.write_bytes(whole[:cut])
        with AnomalyFile(tmp_path, append=True) as again:
            assert key(9) not in load(file.path)
            again.write([record(9)])
        kept = [n for n in range(3) if cut >= (whole.index(b',\n"0:fc%d' % (n + 1)) if n < 2 else len(whole) - 3)]
        assert list(load(file.path)) == list(map(key, [*kept, 9])), cut


def test_append_leaves_other_files_alone(tmp_path):
    path = tmp_path / "anomaly.json"
    for text in ("", "[1, 2]", "hello", '"a"'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"anomaly.json: .* at byte 0; it cannot be continued: move it away"):
            AnomalyFile(tmp_path, append=True)
        assert path.read_text() == text
    # Files of other layouts go on too.
    path.write_text(json.dumps({"a": {"step": 1}}, indent=4))
    with AnomalyFile(tmp_path, append=True) as file:
        file.write([record(2)])
    assert list(load(path)) == ["a", key(2)]


def test_nothing_is_written_through_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    target = outside / "target.json"
    target.write_text("precious")
    folder = tmp_path / "out" / "rank0"
    folder.mkdir(parents=True)
    (folder / "anomaly.json").symlink_to(target)
    with pytest.raises(OSError, match=r"anomaly\.json"):
        AnomalyFile(folder, append=True)
    with AnomalyFile(folder) as file:
        file.write([record(1)])
    assert target.read_text() == "precious"
    assert not file.path.is_symlink()
    (tmp_path / "out" / "rank1").symlink_to(outside)
    with pytest.raises(OSError, match=r"is a symbolic link to .*outside.*; remove the link"):
        AnomalyFile(tmp_path / "out" / "rank1")
    assert sorted(entry.name for entry in outside.iterdir()) == ["target.json"]


def test_a_failed_write_is_counted_and_leaves_the_file_whole(tmp_path):
    with AnomalyFile(tmp_path) as file:
        file.write([record(1)])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + 400, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                file.write([record(2), record(3), record(4)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (file.written, file.failed) == (2, 2)
        assert list(load(file.path)) == [key(1), key(2)]
        file.write([record(4)])
        assert list(load(file.path)) == [key(1), key(2), key(4)]
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            file.write([record(5) | {"value": float("nan")}])
        assert list(load(file.path)) == [key(1), key(2), key(4)]


WRITER = """
import sys
sys.path[:0] = {path!r}
from msmon_alert import AnomalyFile
file = AnomalyFile(sys.argv[1], append=True)
number = 0
print("ready", flush=True)
while True:
    file.write([{{"tag_name": "t" * 300, "step": number + i, "call_id": 0, "message": "m" * 200}} for i in range(8)])
    number += 8
"""


def test_readable_after_a_kill_at_any_moment(tmp_path):
    """A record that was being written may be lost, nothing else, and the next run goes on."""
    chance = random.Random(5)
    code = WRITER.format(path=sys.path)
    before = 0
    for _ in range(6):
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = 0
        try:
            for _key, found_record in RecordReader(tmp_path / "anomaly.json"):
                assert found_record["message"] == "m" * 200
                found += 1
        except BrokenFileError as error:
            # The kernel may stop a write between two of its pages; whole records before that are all there.
            assert "the file ends" in str(error) or "broken" in str(error)  # noqa: PT017
        assert found >= before
        before = found
    assert before > 100
