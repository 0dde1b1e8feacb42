"""MindSpore x monitor: losses and weights are those of the unmonitored training, bit for bit; see
``tests/distributed/test_bit_equal.py`` for the engines of torch."""

from msmon.mindspore import TrainerMon

from .bit_equal import MONITORS, table
from .mindspore_models import build, train, weight_bytes

ENGINES = ("MindSpore", "MindSpore, dynamic mode")


def test_table(write_config, output_dir, monkeypatch, caplog, capsys):
    rows = {}
    for engine in ENGINES:
        monkeypatch.setenv("DYNAMIC_MONITOR", str(engine.endswith("dynamic mode")))
        model, optimizer = build("mlp")
        alone = train("mlp", model, optimizer), weight_bytes(model)
        assert len(set(alone[0])) == len(alone[0]), "the training stands still"
        rows[engine] = {}
        for name, fields in MONITORS.items():
            model, optimizer = build("mlp")
            with TrainerMon(write_config(**fields)) as monitor:
                monitor.set_monitor(model, 1, optimizer)
                losses = train("mlp", model, optimizer)
            rows[engine][name] = (losses, weight_bytes(model)) == alone
    with capsys.disabled():
        print("\n" + table(rows))
    assert all(all(row.values()) for row in rows.values())
    assert len(list(output_dir.glob("*-rank0-*/run.json"))) == len(ENGINES) * len(MONITORS)
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
