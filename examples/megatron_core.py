"""A small GPT by Megatron-core with a distributed optimizer, watched on every rank; then the parts are joined.

torchrun --nproc-per-node 2 examples/megatron_core.py && msmon merge monitor_output
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

# Where there is no GPU: Megatron asks for CUDA, and is given the CPU.
import megatron_on_cpu  # isort: skip  # noqa: F401
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

from msmon.pytorch import TrainerMon

CONFIG = Path(__file__).with_name("monitor_config.json")


def main() -> None:
    """Four steps of two micro-steps each."""
    dist.init_process_group("gloo")
    mpu.initialize_model_parallel()
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=3, hidden_size=16, num_attention_heads=2, use_cpu_initialization=True)
    spec = get_gpt_layer_local_spec()
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=100, max_sequence_length=16)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config=config, ddp_config=ddp_config, module=model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-3, use_distributed_optimizer=True), [model])
    data = torch.Generator().manual_seed(dist.get_rank())
    mask = torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1)
    with TrainerMon(CONFIG, process_group=mpu.get_pipeline_model_parallel_group()) as monitor:
        monitor.set_monitor(
            model,
            grad_acc_steps=2,
            optimizer=optimizer,
            dp_group=mpu.get_data_parallel_group(),
            tp_group=mpu.get_tensor_model_parallel_group(),
        )
        for _ in range(4):
            model.zero_grad_buffer()
            for _ in range(2):
                ids = torch.randint(0, 100, (2, 16), generator=data)
                (model(ids, torch.arange(16)[None].expand(2, -1), mask, labels=ids).mean() / 2).backward()
            finalize_model_grads([model])
            optimizer.step()
    if dist.get_rank() == 0:
        print("files in", os.path.abspath(os.environ.get("MONITOR_OUTPUT_DIR", "monitor_output")))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
