"""The runs of the reference data: model and micro-steps a step, for every framework."""

CASES = {
    "wg": ("mlp", 1),
    "mv": ("mlp", 1),
    "param": ("mlp", 1),
    "mg": ("mlp", 1),
    "wg_record2": ("mlp", 1),
    "wg_interval2_start1": ("mlp", 1),
    "linear_hook": ("mlp", 1),
    "xy_forward_only": ("mlp", 1),
    "xy_targets": ("mlp", 1),
    "wg_acc2": ("mlp", 2),
    "wg_mbs_acc2": ("mlp", 2),
    "xy_acc2": ("mlp", 2),
    "xy_tuple": ("seq", 1),
    "struct": ("seq", 1),
}
