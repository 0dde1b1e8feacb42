"""The account of where it started and how it spread."""

from msmon_alert.causes import explain, group_by_tensor


def record(tag, step=40, rank=1, **more):
    return {"tag_name": f"0:{tag}", "step": step, "rank": rank, "micro_step": 0, "message": ""} | more


FAULT = [
    record("layers.2.attn.proj.weight/rank1/param_origin", rule="AnomalySpike", stats={"norm": {}, "max": {}},
           value=2888.0, history=2.4),
    record("layers.2.attn.proj.output:0/rank1/actv"),
    record("layers.2.attn.proj.output:1/rank1/actv"),
    record("layers.2.attn.output:0/rank1/actv"),
    record("layers.2.attn.output:0/rank1/actv_grad"),
    record("layers.1.fc.weight/rank0/grad_unreduced", rank=0),
    record("layers.1.fc.weight/rank0/grad_reduced", rank=0),
    record("layers.1.fc.weight/rank1/grad_reduced"),
    record("layers.1.fc.weight/rank1/exp_avg", step=41),
    record("layers.1.fc.weight/rank1/exp_avg_sq", step=41),
    record(".input:0/rank1/actv", step=41),
    record("layers.2.attn.proj.weight/rank1/param_origin", step=41),
]  # fmt: skip


def test_records_of_one_tensor_are_one_group():
    groups = group_by_tensor(FAULT)
    assert [(group.module, group.tensor, group.count, group.ranks) for group in groups] == [
        ("layers.2.attn.proj", "weight", 2, (1,)),
        ("layers.2.attn.proj", "output", 2, (1,)),
        ("layers.2.attn", "output", 1, (1,)),
        ("layers.2.attn", "gradient of output", 1, (1,)),
        ("layers.1.fc", "gradient of weight before the reduction", 1, (0,)),
        ("layers.1.fc", "gradient of weight", 2, (0, 1)),
        ("layers.1.fc", "first moment of weight", 1, (1,)),
        ("layers.1.fc", "second moment of weight", 1, (1,)),
        ("", "input", 1, (1,)),
    ]
    assert groups[0].first is FAULT[0]


def test_the_account():
    assert explain(FAULT, listed=7) == [
        "started: layers.2.attn.proj weight at step 40 on rank 1 (AnomalySpike: norm 2888, before 2.4)",
        "next: its output; layers.2.attn output; its gradient of output; "
        "layers.1.fc gradient of weight before the reduction on rank 0; its gradient of weight; "
        "its first moment of weight at step 41 on rank 1; its second moment of weight; and 1 more tensors of 1 modules",
    ]
    assert explain(FAULT)[1].endswith("; and 2 more tensors of 2 modules")
    assert explain(FAULT[:1]) == [
        "started: layers.2.attn.proj weight at step 40 on rank 1 (AnomalySpike: norm 2888, before 2.4)"
    ]
    assert explain([]) == []
    assert explain([record(".input:0/rank1/actv")]) == ["started: (root) input at step 40 on rank 1"]


def test_tags_of_any_kind():
    """Files are edited and damaged: whatever stands in a tag is shown as it is."""
    nines = "9" * 5000  # int() refuses so many
    tags = [
        "{",
        "w/rank0/{0.x}",
        "w}/rank0/grad_reduced",
        f"{nines}:w/rank{nines}/exp_avg",
        f"w:{nines}/rank0/actv",
        "",
    ]
    texts = explain([{**record(""), "tag_name": tag} for tag in tags])
    assert texts[0] == "started: (root) { at step 40 on rank 1"
    assert texts[1].startswith("next: its w ({0.x}); its gradient of w}; ")
