"""The tensors that go through collectives."""

from math import sqrt

import pytest

from .launcher import Ranks
from .proof import coverage, rank_rows


def rows(output_dir, rank):
    """Name -> (number of elements by the norm of constant values, smallest, largest)."""
    found = {}
    for (data_type, _, name, _), row in rank_rows(output_dir, rank).items():
        assert data_type == "other"
        assert row["nans"] == 0, name
        found[name] = (row["min"], row["max"], row["norm"])
    return found


def constant(value, count):
    return pytest.approx((value, value, abs(value) * sqrt(count)))


def test_synchronous_calls_and_inputs(ranks, tmp_path):
    answers = ranks.run("collectives", "step", output=str(tmp_path), what="synchronous", cc_pre_hook=True)
    first, second = rows(tmp_path, 0), rows(tmp_path, 1)
    for rank, found in ((0, first), (1, second)):
        own = rank + 1
        # Two calls: the one of the step and one by a name from before the monitor.
        assert found["all_reduce.pre_0"] == pytest.approx((own, 4, sqrt(6 * own**2 + 16)))
        assert found["all_reduce.post_0"] == pytest.approx((3, 8, sqrt(6 * 9 + 64)))
        assert found["broadcast.post_0"] == constant(7, 6)
        assert found["reduce.pre_0"] == constant(own, 6)
        assert found["all_gather.pre_1"] == constant(own, 6)
        assert found["all_gather.post_0"] == pytest.approx((1, 2, sqrt(6 + 24)))
        assert found["all_gather_into_tensor.post_0"] == found["all_gather.post_0"]
        assert found["all_gather_into_tensor.pre_1"] == constant(own, 6)
        assert found["gather.pre_0"] == constant(own, 6)
        assert found["scatter.post_0"] == constant(own, 6)
        assert found["reduce_scatter.post_0"] == constant((2, 1)[rank], 6)
        assert found["reduce_scatter.pre_1"] == pytest.approx((min(1, rank), max(1, rank), sqrt(6 + 6 * rank)))
        assert found["reduce_scatter_tensor.pre_1"] == constant(own, 12)
        assert found["reduce_scatter_tensor.post_0"] == constant(3, 6)
        assert found["all_to_all_single.post_0"] == pytest.approx((1, 2, sqrt(3 + 12)))
        assert found["all_reduce_coalesced.post_0"] == pytest.approx((3, 20, sqrt(6 * 9 + 6 * 400)))
    assert set(first) - set(second) == {"broadcast.pre_0", "gather.post_1", "scatter.pre_1", "send.pre_0"}
    assert set(second) - set(first) == {"reduce.post_0", "recv.post_0"}
    assert first["scatter.pre_1"] == pytest.approx((1, 2, sqrt(30)))
    assert second["reduce.post_0"] == constant(3, 6)
    assert second["recv.post_0"] == constant(5, 6)
    for answer in answers:
        assert len(answer["intercepted"]) > 35
        assert answer["left"] == []
        assert answer["wait"]
    assert coverage(tmp_path, 0)["expected"]["other"] == len(first)


def test_asynchronous_calls_are_read_after_wait(ranks, tmp_path):
    ranks.run("collectives", "step", output=str(tmp_path), what="asynchronous", cc_pre_hook=True)
    for rank in (0, 1):
        found, own, peer = rows(tmp_path, rank), rank + 1, 2 - rank
        assert found["all_reduce.post_0"] == pytest.approx((3, 8, sqrt(6 * 9 + 64)))
        assert found["irecv.post_0"] == constant(peer, 6)
        assert found["isend.pre_0"] == constant(own, 6)
        assert found["batch_isend_irecv.pre_0"] == constant(own, 6)
        assert found["batch_isend_irecv.post_0"] == constant(peer, 6)
        assert found["reduce_scatter_tensor.post_0"] == pytest.approx((3, 7, sqrt(6 * 9 + 6 * 49)))
        assert found["all_gather_into_tensor.post_0"] == pytest.approx((1, 2, sqrt(6 + 24)))
        assert "broadcast.post_0" not in found
        assert ("broadcast.pre_0" in found) == (rank == 0)


def test_functional_calls_are_read_when_used(ranks, tmp_path):
    ranks.run("collectives", "step", output=str(tmp_path), what="functional", cc_pre_hook=True)
    for rank in (0, 1):
        found, own = rows(tmp_path, rank), rank + 1
        assert found["all_reduce.pre_0"] == pytest.approx((min(own, 3), 4, sqrt(6 * own**2 + 6 * 9 + 16)))
        assert found["all_reduce.post_0"] == pytest.approx((3, 8, sqrt(6 * 9 + 6 * 36 + 64)))
        assert found["all_gather_tensor.post_0"] == pytest.approx((1, 2, sqrt(6 + 24)))
        assert found["reduce_scatter_tensor.post_0"] == constant(2, 6)
        assert found["broadcast.post_0"] == constant(1, 6)
        assert ("broadcast.pre_0" in found) == (rank == 0)
        assert found["all_reduce_coalesced.post_0"] == pytest.approx((2, 4, sqrt(6 * 4 + 6 * 16)))
        assert found["all_to_all_single.post_0"] == pytest.approx((1, 2, sqrt(3 + 12)))


def test_code_lines_and_outputs_alone(ranks, tmp_path):
    ranks.run("collectives", "step", output=str(tmp_path / "a"), what="synchronous")
    assert not [name for name in rows(tmp_path / "a", 0) if ".pre_" in name]
    ranks.run("collectives", "step", output=str(tmp_path / "b"), what="synchronous", cc_codeline=[r"nowhere\.py"])
    assert rank_rows(tmp_path / "b", 0) == {}
    ranks.run(
        "collectives", "step", output=str(tmp_path / "c"), what="synchronous", cc_codeline=[r"collectives\.py\[\d+\]"]
    )
    assert set(rows(tmp_path / "c", 0)) == set(rows(tmp_path / "a", 0))


def test_an_activation_that_a_collective_changed_is_read_again(ranks, tmp_path):
    """Autograd's version counter does not notice the write."""
    for rank, answer in enumerate(ranks.run("collectives", "between_modules", output=str(tmp_path))):
        found = {key[2]: row["norm"] for key, row in rank_rows(tmp_path, rank).items() if key[0] == "actv"}
        assert found["first.output"] == pytest.approx(answer["output"])
        assert found["second.input"] == pytest.approx(answer["input"])
        assert answer["input"] != answer["output"]
        assert answer["restored"]


def test_point_to_point_beside_activations_and_another_monitor(ranks, tmp_path):
    answers = ranks.run("collectives", "point_to_point", output=str(tmp_path))
    for rank, notes in enumerate(answers):
        own, peer = rank + 1, 2 - rank
        for number in range(2):
            found = {
                name: (row["min"], row["max"], row["norm"])
                for (data_type, _, name, _), row in rank_rows(tmp_path / str(number), rank).items()
                if data_type == "other"
            }
            assert found["isend.pre_0"] == constant(own, 6)
            assert found["irecv.post_0"] == constant(peer, 6)
            assert found["send.pre_0"] == constant((5, 6)[rank], 6)
            assert found["recv.post_0"] == constant((6, 5)[rank], 6)
            assert found["batch_isend_irecv.pre_0"] == constant(own + 2, 6)
            assert found["batch_isend_irecv.post_0"] == constant(peer + 2, 6)
        # What this torch has both monitors know of.
        assert notes[0] == notes[1]
        assert not [note for note in notes[1] if "irecv" in note]


def test_a_failure_in_what_waits(ranks, tmp_path):
    for answer in ranks.run("collectives", "waiting_fails", output=str(tmp_path)):
        assert answer == {"received": [12.0, 24.0] * 2}


def test_log_only_ends_every_rank(tmp_path):
    with Ranks(2) as ranks:
        codes, output = ranks.exit_codes("collectives", "log_only", output=str(tmp_path), module_ranks=[1])
    assert codes == [0, 0]
    assert "a step went by" not in output
    assert output.count("collectives of step 0: 1 different calls") == 1
    assert "all_reduce x2, torch.float32, ranks [0, 1] (gloo), from " in output
    assert "collectives.py[" in output
    assert not list(tmp_path.glob("*rank1*/other*"))
