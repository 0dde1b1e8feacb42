"""Megatron-core's GPT, split over ranks: tensor parallel, pipelines, virtual stages, experts."""

import json
from importlib.metadata import version
from itertools import product

import pytest
import torch
from packaging.version import Version

import msmon_io
from msmon import verify
from msmon.merging import merge_ranks

from .proof import (
    assert_all_off,
    assert_other_ranks_silent,
    assert_unchanged,
    assert_verified,
    coverage,
    run_info,
    statistics,
)

STEPS = 2
EXPERTS = {
    "num_moe_experts": 2,
    "moe_router_topk": 1,
    "moe_router_pre_softmax": True,
    "add_bias_linear": False,
}
VARIANTS = {
    "TP 2": {"tensor": 2, "grad_acc_steps": 2},
    "TP 2 distributed optimizer": {"tensor": 2, "split": True},
    "PP 2": {"pipeline": 2, "grad_acc_steps": 4},
    "PP 2, 2 virtual stages": {"pipeline": 2, "virtual": 2, "grad_acc_steps": 4, "overlap": True},
    "PP 2, distributed optimizer": {"pipeline": 2, "split": True, "grad_acc_steps": 2},
    "experts, EP 2": {"expert": 2, "model": EXPERTS},
    "experts, EP 2, distributed optimizer": {
        "expert": 2,
        "split": True,
        "model": EXPERTS,
    },
}


# core_r0.8's distributed optimizer needs Apex, and its experts compute something else when they are on two ranks.
NEEDS_0_9 = [name for name, one in VARIANTS.items() if one.get("split") or one.get("expert")]
installed = Version(version("megatron-core"))


@pytest.mark.parametrize("name", VARIANTS)
def test_proof(megatron_ranks, proof, tmp_path, name):
    if name in NEEDS_0_9 and installed < Version("0.9"):
        pytest.skip("not in this version")
    variant = VARIANTS[name]
    each = variant.get("pipeline", 1) > 1
    answers = megatron_ranks.run(
        "megatron_gpt", "proof", output=str(tmp_path), steps=STEPS, config={"monitor_mbs_grad": each}, **variant
    )
    engine = f"megatron {installed} {name}"
    everywhere = tmp_path / "all"
    proof.check(engine, "a", assert_whole, everywhere, answers)
    proof.check(engine, "b", assert_own, everywhere, answers, each=each)
    proof.check(engine, "c", assert_unchanged, answers)
    proof.check(engine, "d", assert_other_ranks_silent, tmp_path / "first")
    proof.check(engine, "e", assert_all_off, answers)
    proof.check(engine, "f", assert_verified, everywhere)
    for rank in (0, 1):
        assert run_info(everywhere, rank)["pp_stage"] == (rank if variant.get("pipeline", 1) > 1 else 0)
        found = coverage(everywhere, rank)
        # Some modules of Megatron pass functions on, not tensors.
        missing = [entry for entry in found["missing"] if not entry["data_type"].startswith("actv")]
        assert (missing, found["notes"]) == ([], [])


@pytest.mark.skipif(installed < Version("0.9"), reason="not in this version")
@pytest.mark.parametrize("split", [False, True])
def test_sequence_parallelism_is_verified(megatron_ranks, tmp_path, split):
    """Gradients of norms are summed over the tensor-parallel group; where that is forgotten, it shows."""
    arguments = {"steps": 4, "tensor": 2, "split": split, "sequence_parallel": True}
    megatron_ranks.run("megatron_gpt", "monitored", output=str(tmp_path / "right"), **arguments)
    report = verify(tmp_path / "right")
    assert report.holds, report.first
    assert {report.outcome(name).state for name in ("replicas", "reductions", "clipping", "data")} == {"holds"}
    megatron_ranks.run("megatron_gpt", "monitored", output=str(tmp_path / "wrong"), marked=False, **arguments)
    report = verify(tmp_path / "wrong")
    found = [one for one in report.outcome("replicas").violations if one.data_type == "grad_reduced"]
    assert (found[0].step, found[0].ranks) == (0, (0, 1))
    assert {one.tensor.rpartition(".")[0].rpartition(".")[2] for one in found} == {
        "input_layernorm",
        "pre_mlp_layernorm",
        "final_layernorm",
    }
    assert "not reduced over the group" in found[0].guess


def test_tied_weights_are_verified(megatron_ranks, tmp_path):
    """The first and the last stage hold the same weight under two names."""
    arguments = {"steps": 4, "pipeline": 2, "tied": True, "grad_acc_steps": 2}
    megatron_ranks.run("megatron_gpt", "monitored", output=str(tmp_path / "right"), **arguments)
    report = verify(tmp_path / "right")
    assert report.holds, report.first
    assert {report.outcome(name).state for name in ("replicas", "reductions", "clipping")} == {"holds"}
    megatron_ranks.run("megatron_gpt", "monitored", output=str(tmp_path / "wrong"), parting=2, **arguments)
    one = verify(tmp_path / "wrong").outcome("replicas").violations[0]
    assert (one.step, one.data_type, one.ranks) == (2, "param_origin", (0, 1))
    assert one.tensor == "embedding.word_embeddings.weight, tied to pp1/0:output_layer.weight"


def rows_in(run_dir):
    """(data type, step, virtual stage, name, micro-step) -> statistics."""
    rows = {}
    for path in sorted(run_dir.glob("*_*-*.csv")):
        for table in msmon_io.read_csv(path):
            places = zip(
                table.vpp_stages, table.names, table.micro_steps or [0] * len(table), table.rows(), strict=True
            )
            for virtual, name, micro_step, values in places:
                key = (table.data_type, table.step, virtual, name, micro_step)
                assert key not in rows, f"{key} is there twice"
                rows[key] = dict(zip(table.number_ops, values, strict=True))
    return rows


def merged_stages(output_dir):
    """Of each pipeline stage: the ranks that it was merged from, and the rows."""
    report = merge_ranks(output_dir)
    assert not report.incomplete
    return [(json.loads((path / "run.json").read_text())["merged_from"], rows_in(path)) for path in report.run_dirs]


def assert_whole(output_dir, answers):
    """(a) of every stage. Experts of different ranks have one name: they are taken together."""
    for ranks, rows in merged_stages(output_dir):
        originals = {}
        for rank in ranks:
            for virtual, names in enumerate(answers[rank]["names"]):
                for name, original in names.items():
                    originals.setdefault((virtual, name), {})[original] = None
        for step, tables in enumerate(answers[0]["whole"]):
            for kind, whole in tables.items():
                found = {key[2:4] for key in rows if key[:2] == (kind, step)}
                assert found == (set(originals) if whole else set()), (kind, step)
                for virtual, name in found:
                    pieces = [torch.from_numpy(whole[original]).flatten() for original in originals[virtual, name]]
                    assert_row(rows[kind, step, virtual, name, 0], torch.cat(pieces), kind, step, name)


def assert_own(output_dir, answers, *, each):
    """(b): the rank's own gradients in the first step, also after each micro-step."""
    merged = merged_stages(output_dir)
    for rank, answer in enumerate(answers):
        rows = rows_in(msmon_io.newest_run_dirs(output_dir)[rank])
        batches = answer["unreduced"]
        split = {
            (entry["vpp_stage"], entry["name"])
            for entry in run_info(output_dir, rank)["tensors"]
            if any("grad_unreduced" in shard["data_types"] for shard in entry["shards"])
        }
        micro_steps = range(len(batches[0])) if each else [len(batches[0]) - 1]
        for (virtual, names), micro_step in product(enumerate(answer["names"]), micro_steps):
            for name, original in names.items():
                key = ("grad_unreduced", 0, virtual, name, micro_step if each else 0)
                own = [torch.from_numpy(sums[micro_step][original]) for sums in batches.values()]
                if "local_experts" in name:
                    # An expert works for all ranks.
                    assert_row(rows[key], sum(own), *key)
                elif (virtual, name) in split:
                    # What tensor parallelism splits is joined from the parts.
                    assert_row(merged[0][1][key], own[0], *key)
                else:
                    assert_row(rows[key], own[rank if len(own) > 1 else 0], *key)


def assert_row(row, expected, *place):
    assert row == pytest.approx(statistics(expected), rel=1e-4, abs=1e-6), place
