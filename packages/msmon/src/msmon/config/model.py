"""The configuration as the program uses it: one frozen class for each object of the file, one field for each key."""

# ruff: noqa: RUF009 (setting() declares a field; the objects given to it as defaults are frozen)

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import attrs
from attrs import frozen

from msmon.config.checks import (
    boolean,
    choice,
    distinct,
    integer,
    json_object,
    list_of,
    object_of,
    parse_fields,
    positive_number,
    setting,
    string,
)
from msmon.config.patterns import any_matches, check_patterns
from msmon.config.problems import Problems, join
from msmon.config.second_form import SecondForm
from msmon.config.selector import Target, parse_targets
from msmon.config.values import (
    DEFAULT_OPS,
    parse_append_output,
    parse_formats,
    parse_inside,
    parse_ndigits,
    parse_ops,
    parse_rule_name,
)

SWITCHES = (
    "wg_distribution",
    "xy_distribution",
    "param_distribution",
    "mv_distribution",
    "mg_direction",
    "ur_distribution",
    "recording_l2_features",
    "print_struct",
    "stack_info",
)
"""The boolean fields of which at least one must be on, if no collectives are monitored."""

_module_names = distinct(list_of(string, "module names"))


@frozen(kw_only=True)
class RuleConfig:
    """One entry of `alert.rules`."""

    rule_name: str = setting("", parse_rule_name)
    """The name under which the rule is registered, such as `AnomalyTurbulence`."""

    args: dict[str, Any] = setting(attrs.Factory(dict), json_object)
    """The arguments of the rule, such as `{"threshold": 0.5}`."""


def _parse_rule(value: object, path: str, problems: Problems) -> RuleConfig | None:
    if isinstance(value, Mapping) and "rule_name" not in value:
        problems.error(join(path, "rule_name"), "is missing")
    return parse_fields(RuleConfig, value, path, problems)


@frozen(kw_only=True)
class AlertConfig:
    """The object `alert`."""

    rules: tuple[RuleConfig, ...] = setting((), list_of(_parse_rule, "rules"))
    """The rules, in the order in which they are asked."""

    dump: bool = setting(False, boolean)
    """Also write every anomaly to `anomaly.json`."""

    def rule_dicts(self) -> list[dict[str, Any]]:
        """The rules as plain objects, what `msmon_alert.rules_from_config` takes."""
        return [{"rule_name": rule.rule_name, "args": deepcopy(rule.args)} for rule in self.rules]


@frozen(kw_only=True)
class CcConfig:
    """The object `cc_distribution`: the tensors that go through collectives."""

    enable: bool = setting(False, boolean)
    """Monitor collectives."""

    cc_codeline: tuple[str, ...] = setting((), check_patterns)
    """Only calls from these places: regular expressions, searched in `file[line]`. Empty: all calls."""

    cc_pre_hook: bool = setting(False, boolean)
    """Also what goes into a collective, not only what comes out."""

    cc_log_only: bool = setting(False, boolean)
    """Log the calls of the first step with their stack, then end the program."""

    def wants(self, code_line: str) -> bool:
        """Whether a call from `code_line`, such as `train.py[120]`, is monitored."""
        return not self.cc_codeline or any_matches(self.cc_codeline, code_line)


@frozen(kw_only=True)
class L2Config:
    """The object `l2_targets`: module names for each feature. None: the feature is off; empty: the feature decides."""

    attention_hook: tuple[str, ...] | None = setting(None, _module_names)
    """Attention modules whose first two inputs are Q and K. Empty: nothing is collected."""

    linear_hook: tuple[str, ...] | None = setting(None, _module_names)
    """Modules with a 2-D weight. Empty: every module that qualifies."""

    moe_router_weight_hook: tuple[str, ...] | None = setting(None, _module_names)
    """Routers of experts, for the similarity of their weight's rows."""

    moe_router_logit_hook: tuple[str, ...] | None = setting(None, _module_names)
    """Routers of experts, for the entropy of their output."""

    def features(self) -> dict[str, tuple[str, ...]]:
        """Each feature that is computed, with its modules."""
        named: dict[str, tuple[str, ...] | None] = attrs.asdict(self)
        return {kind: names for kind, names in named.items() if names or (names is not None and kind == "linear_hook")}


@frozen(kw_only=True)
class Config:
    """A whole configuration file, checked. See `docs/configuration.md` for every field with an example.

    >>> Config(wg_distribution=True).ops
    ('norm',)
    """

    targets: tuple[Target, ...] = setting((), parse_targets)
    """What to monitor, by module or parameter name. Empty: everything."""

    dynamic_on: bool = setting(False, boolean)
    """Dynamic mode: collect now. Only read when the environment has DYNAMIC_MONITOR=True."""

    start_step: int = setting(0, integer(0))
    """The first step to collect (static mode)."""

    collect_times: int = setting(100_000_000, integer(0))
    """How many sampled steps to collect, then all hooks come off."""

    step_interval: int = setting(1, integer(1))
    """Collect every n-th step from `start_step` on."""

    print_struct: bool = setting(False, boolean)
    """After the first step write and print the inputs and outputs of every module, then end the program."""

    module_ranks: tuple[int, ...] = setting((), distinct(list_of(integer(0), "ranks")))
    """The ranks on which to monitor. Empty: all."""

    param_distribution: bool = setting(False, boolean)
    """Weights before and after the optimizer step."""

    wg_distribution: bool = setting(False, boolean)
    """Weight gradients before and after the reduction over ranks."""

    monitor_mbs_grad: bool = setting(False, boolean)
    """With `wg_distribution`: the unreduced gradient after each micro-batch."""

    xy_distribution: bool = setting(False, boolean)
    """Activations and their gradients."""

    all_xy: bool = setting(False, boolean)
    """With `xy_distribution`: all modules, also those that `targets` does not name."""

    forward_only: bool = setting(False, boolean)
    """With `xy_distribution`: activations, without their gradients."""

    backward_only: bool = setting(False, boolean)
    """With `xy_distribution`: gradients of activations, without the activations."""

    inside_compiled: bool | str = setting(False, parse_inside)
    """With `xy_distribution`: also modules inside of graphs of `torch.compile`; `"stored"`: only what the compiled
    program has in memory."""

    mv_distribution: bool = setting(False, boolean)
    """The optimizer moments exp_avg (m) and exp_avg_sq (v)."""

    mg_direction: bool = setting(False, boolean)
    """Agreement in sign of gradient and momentum."""

    ur_distribution: bool = setting(False, boolean)
    """Histograms of Adam's update and ratio as TensorBoard pictures."""

    cc_distribution: CcConfig = setting(CcConfig(), object_of(CcConfig))
    """The tensors that go through collectives."""

    stack_info: bool = setting(False, boolean)
    """The call stack of each module in the first step (CSV only)."""

    alert: AlertConfig = setting(AlertConfig(), object_of(AlertConfig))
    """Rules that report odd values."""

    l2_targets: L2Config = setting(L2Config(), object_of(L2Config))
    """Module names for the features that `recording_l2_features` switches on."""

    recording_l2_features: bool = setting(False, boolean)
    """Compute the features of `l2_targets`."""

    sa_order: str = setting("s,b,h,d", choice(("s,b,h,d", "b,s,h,d")))
    """The layout of Q and K for `attention_hook`: sequence, batch, head, dimension."""

    format: tuple[str, ...] = setting(("csv",), parse_formats)
    """Where results go: csv, tensorboard, api, parquet, or a writer of another package."""

    ops: tuple[str, ...] = setting(DEFAULT_OPS, parse_ops)
    """The statistics, in the order of the columns."""

    eps: float = setting(1e-8, positive_number)
    """`zeros` is the share of elements with abs(x) < eps."""

    ndigits: int = setting(6, parse_ndigits)
    """Decimals in CSV, significant digits below 1."""

    step_count_per_record: int = setting(1, integer(1))
    """Steps per CSV file."""

    append_output: tuple[str, ...] = setting((), parse_append_output)
    """Resumed training: write into the existing run directories between these two time stamps."""

    squash_name: bool = setting(False, boolean)
    """Shorten names in the output."""

    second_form: SecondForm | None = None
    """What the configuration was made from, if it is a translation; it says how files look."""

    source: str = "configuration"
    """The file that the configuration was read from, for messages."""

    warnings: tuple[str, ...] = ()
    """What is valid but has no effect, or not the one that was meant; the caller logs these."""

    @property
    def monitors(self) -> tuple[str, ...]:
        """The switches that are on and have something to do.

        >>> Config(wg_distribution=True, stack_info=True, format=("api",)).monitors
        ('wg_distribution',)
        """
        idle = {
            "xy_distribution": not (self.collects_actv or self.collects_actv_grad),
            "recording_l2_features": not any(self.l2_targets.features()),
            "stack_info": "csv" not in self.format,
        }
        switches = [key for key in SWITCHES if getattr(self, key) and not idle.get(key, False)]
        return (*switches, *(("cc_distribution",) if self.cc_distribution.enable else ()))

    @property
    def collects_actv(self) -> bool:
        """Activations are collected."""
        return self.xy_distribution and not self.backward_only

    @property
    def collects_actv_grad(self) -> bool:
        """Gradients of activations are collected."""
        return self.xy_distribution and not self.forward_only

    def differences(self, other: "Config") -> set[str]:
        """The fields in which two configurations differ, whatever file they come from."""
        mine, theirs = self.to_dict(), other.to_dict()
        return {key for key in mine if mine[key] != theirs[key]}

    def to_dict(self) -> dict[str, Any]:
        """The effective configuration as a JSON object that could be read back, every field with its value."""
        done = attrs.asdict(self, recurse=False, filter=lambda field, _: "check" in field.metadata)
        done["targets"] = {target.key: target.to_dict() for target in self.targets}
        done["cc_distribution"] = attrs.asdict(self.cc_distribution)
        done["alert"] = {"rules": self.alert.rule_dicts(), "dump": self.alert.dump}
        done["l2_targets"] = {k: v for k, v in attrs.asdict(self.l2_targets).items() if v is not None}
        done["format"] = self.format[0] if len(self.format) == 1 else list(self.format)
        return {key: _with_lists(value) for key, value in done.items()}


def _with_lists(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_with_lists(v) for v in value]
    if isinstance(value, dict):
        return {k: _with_lists(v) for k, v in value.items()}
    return value
