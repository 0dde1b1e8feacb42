"""A short version of ``make soak``: starting and stopping leaves nothing behind."""

from ..soak import grown, soak


def test_starting_and_stopping_leaves_nothing_behind(tmp_path, output_dir, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    stops, starts = soak(tmp_path, steps=300, every=20)
    assert len(stops) == 8
    assert len(starts) == 7
    assert grown(stops) == []
    assert grown(starts) == []
    assert {state.hooks for state in stops} == {stops[0].hooks}
    assert all(state.hooks > stops[0].hooks for state in starts)
    assert len(list((tmp_path / "out").glob("*-rank0-*"))) == 7
