"""Anomaly files of all ranks: the order of what happened, how it spread, damaged files, files of the older tool."""

from pathlib import Path

from msmon.reading.anomalies import read_anomalies
from msmon.reading.index import TensorKey
from msmon.reading.summary import summarize

from .files import write_anomalies, write_rank


def test_order_spread_and_marks(tmp_path: Path) -> None:
    late = {"step": 4, "tag_name": "0:a/rank0/grad_reduced", "micro_step": 1}
    forward = {"step": 3, "tag_name": "0:layers.1.output:1/rank1/actv", "micro_step": 1}
    backward = {"step": 3, "tag_name": "0:layers.1.output:1/rank1/actv_grad", "micro_step": 1}
    write_anomalies(tmp_path, 0, [late])
    write_anomalies(tmp_path, 1, [backward, forward, {**late, "tag_name": "0:a/rank1/grad_reduced"}])
    notes: list[str] = []
    found = read_anomalies(tmp_path, notes)
    assert not notes
    assert found.total == 4
    assert [(one.step, one.rank, one.data_type) for one in found.first] == [
        (3, 1, "actv"),
        (3, 1, "actv_grad"),
        (4, 0, "grad_reduced"),
        (4, 1, "grad_reduced"),
    ]
    # The micro-step of the tag is not a part of the name.
    assert found.first[0].tensor == TensorKey(0, 0, "layers.1.output")
    assert found.first[0].fired() == "Rule AnomalyNan reports anomaly signal"
    assert [(one.step, one.tensors, one.ranks) for one in found.spread] == [(3, 2, (1,)), (4, 1, (0, 1))]
    assert found.marks["grad_reduced"] == {(TensorKey(0, 0, "a"), 4)}


def test_anomalies_of_another_launch_are_left_out(tmp_path: Path) -> None:
    """An older launch had two ranks; of rank 0 the newer one began the file anew."""
    for stamp, ranks in (("Nov28_10-00-00", 2), ("Nov29_10-00-00", 1)):
        for rank in range(ranks):
            write_rank(tmp_path, {"actv": [(0, "m", 0, 1.0)]}, stamp=stamp, rank=rank, info={"world_size": ranks})
    for rank in (0, 1):
        write_anomalies(tmp_path, rank, [{"step": 3, "tag_name": f"0:w/rank{rank}/grad_reduced"}])
    newest = summarize(tmp_path)
    assert [one.rank for one in newest.anomalies.first] == [0]
    assert "the anomalies of rank1 are left out: another launch wrote them" in newest.run.notes
    older = summarize(tmp_path / "Nov28_10-00-00")
    assert older.anomalies.total == 0
    assert "the anomalies of rank0, rank1 are left out: another launch wrote them" in older.run.notes


def test_damaged_and_strange_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    path = write_anomalies(tmp_path, 0, [{"step": s, "tag_name": f"0:w{s}/rank0/grad_reduced"} for s in range(5)])
    text = path.read_text()
    path.write_text(text[: text.index("w4")])
    write_anomalies(
        tmp_path, 1, [{"step": 0, "tag_name": "no tag at all"}, {"step": "x", "tag_name": "0:w/rank1/actv"}]
    )
    notes: list[str] = []
    found = read_anomalies(tmp_path, notes)
    assert found.total == 5
    assert {one.tensor.name for one in found.first} == {"w0", "w1", "w2", "w3", "no tag at all"}
    assert any("rank0" in note and "at byte" in note for note in notes)
    assert any("step is 'x', not an integer" in note for note in notes)


def test_one_run_directory_has_its_own_ranks_anomalies(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_anomalies(tmp_path, rank, [{"step": rank, "tag_name": f"0:w/rank{rank}/grad_reduced"}])
    run_dir = tmp_path / "Nov29_10-00-00-rank1-00000001"
    run_dir.mkdir()
    assert [one.rank for one in read_anomalies(run_dir, []).first] == [1]
    assert read_anomalies(tmp_path, []).total == 2
