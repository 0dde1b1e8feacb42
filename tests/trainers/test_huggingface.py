"""Hugging Face's Trainer and what is built on it: TRL, PEFT; and accelerate."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from .conftest import Row
from .probe import CONFIG, Outcome, Probe, judge, outcome

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

everywhere = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="a case of `make test-trainers`")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYER = "model.layers.1.mlp.down_proj"
NORM = "model.norm"


class Tokens(Dataset):
    """Random token ids, the same each time."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(3, 60, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def callbacks(config: Path | None) -> list[Any]:
    from msmon.integrations.transformers import MsmonCallback

    return [] if config is None else [MsmonCallback(config)]


def reset() -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def kept_losses(kind: type) -> type:
    """The trainer, and the loss of each of its micro-steps."""

    def training_step(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super(found, self).training_step(*args, **kwargs)
        self.losses.append(loss.item())
        return loss

    found = type(kind.__name__, (kind,), {"training_step": training_step})
    return found


def arguments(kind: type, folder: Path, **options: Any) -> Any:
    common = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": False,
    }
    return kind(**common | options)


def both(train: Callable[[Path | None, Probe | None], Outcome], probe: Probe, config: Path) -> tuple[Outcome, Outcome]:
    """The training without and with a monitor; the probe looks at the first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe:
            plain = train(None, probe)
        return plain, train(config, None)


OPTIONS = {
    "plain": {},
    "accumulation and clipping": {"gradient_accumulation_steps": 3, "max_grad_norm": 0.01},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "reentrant checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "bf16": {"bf16": True},
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[everywhere] if n != "plain" else []) for n in OPTIONS])
def test_trainer(name: str, tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        model = llama()
        args = arguments(transformers.TrainingArguments, tmp_path / "hf", **OPTIONS[name])
        kind = kept_losses(transformers.Trainer)
        trainer = kind(model=model, args=args, train_dataset=Tokens(), callbacks=callbacks(config))
        trainer.losses = []
        if probe is not None:
            probe.watch(model)
        trainer.train()
        return outcome(trainer.losses, model)

    probe = Probe(f"{LAYER}.weight", NORM)
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(f"HF Trainer, {name}", judge(output_dir, probe, plain, monitored))


@everywhere
def test_resume(tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    def train(config: Path | None, probe: Probe | None) -> Outcome:
        folder = tmp_path / ("plain" if config is None else "monitored")
        losses: list[float] = []
        for steps in (2, 5):
            reset()
            model = llama()
            options = {"max_steps": steps, "save_strategy": "steps", "save_steps": 2}
            args = arguments(transformers.TrainingArguments, folder, lr_scheduler_type="constant", **options)
            resumed = steps == 5
            kind = kept_losses(transformers.Trainer)
            trainer = kind(
                model=model, args=args, train_dataset=Tokens(), callbacks=callbacks(config if resumed else None)
            )
            trainer.losses = losses
            if probe is not None and resumed:
                probe.watch(model)
            trainer.train(resume_from_checkpoint=resumed)
        return outcome(losses, model)

    probe = Probe(f"{LAYER}.weight", NORM)
    plain, monitored = both(train, probe, write_config(**CONFIG))
    assert len(probe.gradients) == 3
    assert probe.moments[0] is not None, "the moments of the checkpoint"
    verdict("HF Trainer, resumed", judge(output_dir, probe, plain, monitored, first_step=2))


@everywhere
def test_compiled(tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        torch._dynamo.reset()
        model = llama()
        options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
        args = arguments(transformers.TrainingArguments, tmp_path / "hf", **options)
        kind = kept_losses(transformers.Trainer)
        trainer = kind(model=model, args=args, train_dataset=Tokens(), callbacks=callbacks(config))
        trainer.losses = []
        if probe is not None:
            probe.watch(model, hooks=False)
        trainer.train()
        if probe is not None:
            # What the compiled model returns is the only activation that can be seen.
            probe.outputs = [[loss] for loss in trainer.losses]
        return outcome(trainer.losses, model)

    probe = Probe(f"{LAYER}.weight", None)
    plain, monitored = both(train, probe, write_config(**CONFIG))

    def inside(entry: dict[str, str]) -> bool:
        return entry["data_type"] == "actv" and entry["reason"].endswith("inside a region compiled by torch.compile")

    found = judge(output_dir, probe, plain, monitored, output=".output_loss", allowed=inside)
    verdict("HF Trainer, torch_compile", found)


def lora(model: nn.Module) -> nn.Module:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_dropout=0.0))


def test_peft(tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        model = lora(llama())
        args = arguments(transformers.TrainingArguments, tmp_path / "hf")
        kind = kept_losses(transformers.Trainer)
        trainer = kind(model=model, args=args, train_dataset=Tokens(), callbacks=callbacks(config))
        trainer.losses = []
        if probe is not None:
            probe.watch(model)
        trainer.train()
        return outcome(trainer.losses, model)

    name = f"base_model.model.{LAYER}.lora_A.default.weight"
    probe = Probe(name, f"base_model.model.{NORM}")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict("HF Trainer, PEFT LoRA", judge(output_dir, probe, plain, monitored))


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(56))]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "LoRA"])
def test_trl_sft(adapted: bool, tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    texts = [" ".join(f"w{(n * k) % 56}" for k in range(1, 9)) for n in range(32)]

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        model = lora(llama()) if adapted else llama()
        args = arguments(trl.SFTConfig, tmp_path / "trl", max_length=16, gradient_accumulation_steps=2)
        kind = kept_losses(trl.SFTTrainer)
        trainer = kind(
            model=model,
            args=args,
            train_dataset=datasets.Dataset.from_dict({"text": texts}),
            processing_class=tokenizer(),
            callbacks=callbacks(config),
        )
        trainer.losses = []
        if probe is not None:
            probe.watch(model)
        trainer.train()
        return outcome(trainer.losses, model)

    prefix = "base_model.model." if adapted else ""
    probe = Probe(f"{prefix}{LAYER}.{'lora_A.default.' if adapted else ''}weight", f"{prefix}{NORM}")
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(f"TRL SFT{', LoRA' * adapted}", judge(output_dir, probe, plain, monitored))


def test_trl_grpo(tmp_path: Path, write_config: Any, output_dir: Path, verdict: Row) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    prompts = [f"w{n} w{n + 1} w{n + 2}" for n in range(16)]

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        model = llama()
        args = arguments(
            trl.GRPOConfig,
            tmp_path / "grpo",
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=6,
            gradient_accumulation_steps=1,
            max_steps=3,
            gradient_checkpointing=False,
        )
        kind = kept_losses(trl.GRPOTrainer)
        trainer = kind(
            model=model,
            args=args,
            reward_funcs=lambda completions, **kwargs: [float(len(set(one.split()))) for one in completions],
            train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer(),
            callbacks=callbacks(config),
        )
        trainer.losses = []
        if probe is not None:
            probe.watch(model)
        trainer.train()
        return outcome(trainer.losses, model)

    probe = Probe(f"{LAYER}.weight", NORM)
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict("TRL GRPO", judge(output_dir, probe, plain, monitored))


@pytest.mark.parametrize("micro_steps", [pytest.param(1), pytest.param(2, marks=everywhere)])
def test_accelerate(micro_steps: int, write_config: Any, output_dir: Path, verdict: Row) -> None:
    from accelerate import Accelerator

    from msmon.pytorch import TrainerMon

    def train(config: Path | None, probe: Probe | None) -> Outcome:
        reset()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_steps)
        model = llama()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        if probe is not None:
            probe.watch(model)
        monitor = None
        if config is not None:
            monitor = TrainerMon(str(config), params_have_main_grad=False)
            monitor.set_monitor(model, micro_steps, optimizer)
        losses = []
        for at in range(3 * micro_steps):
            with accelerator.accumulate(model):
                batch = {key: value[None] for key, value in Tokens()[at].items()}
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        if monitor is not None:
            monitor.close()
        return outcome(losses, model)

    probe = Probe(f"{LAYER}.weight", NORM)
    plain, monitored = both(train, probe, write_config(**CONFIG))
    verdict(f"accelerate{', accumulation' * (micro_steps > 1)}", judge(output_dir, probe, plain, monitored))
