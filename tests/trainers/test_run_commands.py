"""`msmon run` in front of the commands of other packages, of which no line is changed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import frozen

from tests.trainers.launched import inputs
from tests.trainers.launched.trainings import Seen, compare

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="a case of `make test-trainers`"),
    pytest.mark.timeout(1000),
]
BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).with_name("launched") / "scripts"
HUGGING_FACE = (
    "--model_name_or_path {inputs}/model --use_cpu --bf16 false --report_to none --max_steps 3 --save_strategy no"
    " --per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_length 32 --output_dir saved"
)
LITGPT = (
    "--out_dir saved --precision 32-true --devices 1 --train.micro_batch_size 2"
    " --train.global_batch_size 4 --train.max_seq_length 16 --train.lr_warmup_steps 1 --eval.initial_validation false"
    " --eval.final_validation false --logger_name csv"
)


@frozen(kw_only=True)
class Command:
    """What is typed, in a folder where `{inputs}` are."""

    words: str
    saved: str
    """Pattern of the files with its weights."""
    models: list[str]
    first: int = 0
    """The first step with rows: 1 where the model is first called inside of the optimizer's step, with a closure."""


COMMANDS = {
    "trl sft": Command(
        words=f"trl sft --dataset_name {{inputs}}/texts {HUGGING_FACE}",
        saved="saved/model.safetensors",
        models=["LlamaForCausalLM"],
    ),
    "trl dpo": Command(
        words=f"trl dpo --dataset_name {{inputs}}/preferences {HUGGING_FACE}",
        saved="saved/model.safetensors",
        models=["LlamaForCausalLM"],
    ),
    # Its command line program imports timm, which needs torchvision here.
    "python -m accelerate.commands.launch -m trl.scripts.reward": Command(
        words="python -m accelerate.commands.launch --cpu -m trl.scripts.reward "
        f"--dataset_name {{inputs}}/preferences {HUGGING_FACE}",
        saved="saved/model.safetensors",
        models=["LlamaForSequenceClassification"],
    ),
    "torchrun -m trl.scripts.sft": Command(
        words=f"torchrun --nproc-per-node 2 -m trl.scripts.sft --dataset_name {{inputs}}/texts {HUGGING_FACE}",
        saved="saved/model.safetensors",
        models=["LlamaForCausalLM"],
    ),
    "litgpt finetune_full": Command(
        words=f"litgpt finetune_full {{inputs}}/litgpt --data JSON --data.json_path {{inputs}}/asked"
        f" --data.num_workers 0 --train.max_steps 3 {LITGPT}",
        saved="saved/final/lit_model.pth",
        models=["GPT"],
    ),
    "python lightning_cli.py fit": Command(
        words="python {scripts}/lightning_cli.py fit --trainer.max_steps 3 --trainer.accelerator cpu"
        " --trainer.accumulate_grad_batches 2 --trainer.limit_val_batches 1 --trainer.val_check_interval 2"
        " --trainer.enable_progress_bar false",
        saved="lightning_logs/version_0/checkpoints/*.ckpt",
        models=["DemoModel"],
    ),
    "torchrun --nproc-per-node 2 ddp.py": Command(
        words="torchrun --nproc-per-node 2 {scripts}/ddp.py", saved="model.pth", models=["Sequential"]
    ),
    "python ignite_trainer.py": Command(
        words="python {scripts}/ignite_trainer.py", saved="model.pth", models=["Sequential"]
    ),
    "python skorch_regressor.py": Command(
        words="python {scripts}/skorch_regressor.py", saved="model.pth", models=["Network"], first=1
    ),
    "python stable_baselines.py": Command(
        words="python {scripts}/stable_baselines.py", saved="model.pth", models=["ActorCriticPolicy"]
    ),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    inputs.make(folder)
    inputs.make_litgpt(folder)
    return folder


@pytest.fixture(scope="module")
def row() -> Iterator[Callable[[str, Seen], None]]:
    """Takes a line of the table, which is printed at the end."""
    rows: dict[str, Seen] = {}
    yield rows.__setitem__
    width = max(map(len, rows), default=0)
    named = max((len(", ".join(one.models)) for one in rows.values()), default=0)
    print(f"\n\n{'command':{width}}  lines changed  {'models found':{named}}  losses bit-equal  rows equal")
    for name, one in rows.items():
        cells = ["yes" if held else "no" for held in (one.losses, one.rows)]
        print(f"{name:{width}}  {0:<13}  {', '.join(one.models):{named}}  {cells[0]:16}  {cells[1]}")


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name: str, request: pytest.FixtureRequest, tmp_path: Path, row: Callable[[str, Seen], None]) -> None:
    command = COMMANDS[name]
    made = request.getfixturevalue("made") if "{inputs}" in command.words else None
    first, *others = command.words.format(inputs=made, scripts=SCRIPTS).split()
    seen = compare([str(BIN / first), *others], command.saved, tmp_path, first=command.first)
    row(f"msmon run -- {name}", seen)
    assert seen.holds, seen
    assert seen.models == command.models
