"""Engine x monitor: losses and weights are those of the unmonitored training, bit for bit."""

import pytest
import torch

from msmon.pytorch import TrainerMon

from ..integration.bit_equal import MONITORS, table
from ..integration.residual_model import train

IN_ONE_PROCESS = {
    "plain torch": {},
    "plain torch, dynamic mode": {},
    "plain torch, checkpointing": {"checkpointing": True},
    "torch.compile": {"compiled": True, "depth": 1},
}
OF_TWO_RANKS = {
    "DDP": {"engine": "ddp", "grad_acc_steps": 2},
    "FSDP1": {"engine": "fsdp1", "grad_acc_steps": 2},
    "FSDP2": {"engine": "fsdp2", "grad_acc_steps": 2},
    "DTensor tensor parallelism": {"engine": "tensor_parallel"},
    **{f"DeepSpeed ZeRO {n}": {"engine": "deepspeed_zero", "stage": n, "grad_acc_steps": 2} for n in range(4)},
}
MEGATRON = {
    "Megatron": {"engine": "megatron_core", "grad_acc_steps": 2},
    "Megatron, distributed optimizer": {"engine": "megatron_core", "grad_acc_steps": 2, "split": True},
}


@pytest.fixture
def in_one_process(write_config, output_dir, monkeypatch, caplog):
    """``in_one_process(engine, options)``: monitor -> is it bit-equal?"""

    def run(engine, options):
        monkeypatch.setenv("DYNAMIC_MONITOR", str(engine.endswith("dynamic mode")))

        def attach(fields):
            def set_monitor(model, optimizer):
                monitor = TrainerMon(write_config(**fields), params_have_main_grad=False)
                monitor.set_monitor(model, 2, optimizer)
                return monitor

            return set_monitor

        alone = train(steps=3, **options)
        assert len(set(alone[0])) == 6, "the training stands still"
        row = {name: train(steps=3, attach=attach(fields), **options) == alone for name, fields in MONITORS.items()}
        assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        return row

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)
    torch.compiler.reset()


def test_table(in_one_process, ranks, megatron_ranks, tmp_path, output_dir, capsys):
    rows = {engine: in_one_process(engine, options) for engine, options in IN_ONE_PROCESS.items()}
    assert len(list(output_dir.glob("*-rank0-*"))) == len(IN_ONE_PROCESS) * len(MONITORS)
    for pool, engines in ((ranks, OF_TWO_RANKS), (megatron_ranks, MEGATRON)):
        for engine, variant in engines.items():
            output = tmp_path / engine
            answers = pool.run("bit_equal", "outcomes", output=str(output), monitors=MONITORS, **variant)
            rows[engine] = {name: all(answer[name] == answer["alone"] for answer in answers) for name in MONITORS}
            assert [answer["errors"] for answer in answers] == [[], []], engine
            for name in MONITORS:
                assert len(list((output / name).glob("*-rank[01]-*/run.json"))) == 2, (engine, name)
            assert len(set(answers[0]["alone"][0])) == len(answers[0]["alone"][0]), "the training stands still"
    with capsys.disabled():
        print("\n" + table(rows))
    assert all(all(row.values()) for row in rows.values())
