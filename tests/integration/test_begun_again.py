"""A trainer begins its loop again, by itself or because it is called twice: one monitor at a time, none left behind."""

import json

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from msmon.integrations.transformers import MsmonCallback


class Points(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((3,), 1.0 + index)}


class Model(nn.Module):
    """Runs out of memory with more than two rows at the third forward."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3 and len(x) > 2:
            raise RuntimeError("CUDA out of memory.")
        return {"loss": self.fc(x).mean()}


class Losses(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in (logs or {}):
            self.seen.append(logs["loss"])


def train(folder, callbacks, times=1):
    torch.manual_seed(0)
    model = Model()
    losses = Losses()
    args = TrainingArguments(
        output_dir=str(folder), auto_find_batch_size=True, per_device_train_batch_size=4, max_steps=4, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, remove_unused_columns=False, seed=1,
    )  # fmt: skip
    trainer = Trainer(model=model, args=args, train_dataset=Points(), callbacks=[*callbacks, losses])
    for _ in range(times):
        trainer.train()
    return model, losses.seen


def hooks_on(model):
    return [
        hook for module in model.modules() for name, hook in vars(module).items() if name.endswith("_hooks") and hook
    ]


def test_a_smaller_batch_after_an_error(write_config, output_dir, tmp_path):
    plain, losses = train(tmp_path, [])
    callback = MsmonCallback(write_config(wg_distribution=True, xy_distribution=True))
    watched, seen = train(tmp_path, [callback])
    assert seen == losses
    assert torch.equal(plain.fc.weight, watched.fc.weight)
    assert not hooks_on(watched)
    first, second = sorted(output_dir.glob("*-rank0-*"), key=lambda path: path.stat().st_ctime_ns)
    assert [len(list(run.glob("grad_reduced_*.csv"))) for run in (first, second)] == [2, 4]
    # The second begins at the trainer's own step, and each step has the micro-step of one forward.
    rows = [path.read_text().splitlines()[1].split(",")[:4] for path in sorted(second.glob("actv_[0-9]*.csv"))]
    assert [row[2:] for row in rows] == [["0", "0"], ["1", "0"], ["2", "0"], ["3", "0"]]
    assert json.loads((second / "coverage.json").read_text())["missing"] == []


def test_train_called_twice(write_config, output_dir, tmp_path):
    callback = MsmonCallback(write_config(wg_distribution=True))
    watched, _ = train(tmp_path, [callback], times=2)
    assert not hooks_on(watched)
    assert len(list(output_dir.glob("*-rank0-*"))) == 3
