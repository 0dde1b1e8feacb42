"""The second form of configuration, that of `msmon.monitor_v2.TrainerMonitorV2`: what a file of it may hold."""

# ruff: noqa: RUF009 (setting() declares a field; the objects given to it as defaults are frozen)

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import frozen

from msmon.config.checks import boolean, choice, distinct, integer, list_of, object_of, positive_number, setting, string
from msmon.config.patterns import check_patterns
from msmon.config.problems import Problems
from msmon.config.values import parse_ops

FRAMEWORKS = {"pytorch": "torch", "pt": "torch", "torch": "torch", "mindspore": "mindspore", "ms": "mindspore"}
"""What a configuration may call a framework: its import name."""

_OPS = ("min", "max", "mean", "norm", "nans")


@frozen(kw_only=True)
class _Monitor:
    enabled: bool = setting(False, boolean)
    ops: tuple[str, ...] = setting(_OPS, parse_ops)
    eps: float = setting(1e-8, positive_number)


@frozen(kw_only=True)
class ModuleMonitor(_Monitor):
    """Inputs and outputs of modules, and their gradients."""

    enabled: bool = setting(True, boolean)
    targets: tuple[str, ...] = setting((), distinct(list_of(string, "parts of module names")))


@frozen(kw_only=True)
class WeightGradMonitor(_Monitor):
    """Weight gradients."""

    monitor_mbs_grad: bool = setting(False, boolean)
    micro_batch_number: int | None = setting(None, integer(1))
    grad_acc_steps: int | None = setting(None, integer(1))


@frozen(kw_only=True)
class OptimizerMonitor(_Monitor):
    """Moments."""

    mv_distribution: bool = setting(True, boolean)


@frozen(kw_only=True)
class ParamMonitor(_Monitor):
    """Weights."""

    param_distribution: bool = setting(True, boolean)


@frozen(kw_only=True, slots=False)  # CcMonitor has two bases
class CcCalls:
    """Which collectives; stands in `cc` itself or in its `cc_distribution`."""

    cc_codeline: tuple[str, ...] = setting((), check_patterns)
    cc_log_only: bool = setting(False, boolean)
    cc_pre_hook: bool = setting(False, boolean)
    module_ranks: tuple[int, ...] = setting((), distinct(list_of(integer(0), "ranks")))


@frozen(kw_only=True)
class CcMonitor(_Monitor, CcCalls):
    """Collectives."""

    cc_distribution: CcCalls | None = setting(None, object_of(CcCalls))

    @property
    def calls(self) -> CcCalls:
        """Those that are in force."""
        return self.cc_distribution or self


@frozen(kw_only=True)
class Monitors:
    """The object `monitors`."""

    module: ModuleMonitor = setting(ModuleMonitor(), object_of(ModuleMonitor))
    weight_grad: WeightGradMonitor = setting(WeightGradMonitor(), object_of(WeightGradMonitor))
    optimizer: OptimizerMonitor = setting(OptimizerMonitor(), object_of(OptimizerMonitor))
    param: ParamMonitor = setting(ParamMonitor(), object_of(ParamMonitor))
    cc: CcMonitor = setting(CcMonitor(), object_of(CcMonitor))

    def enabled(self) -> dict[str, _Monitor]:
        """Name to monitor, of those that are on."""
        return {name: one for name in attrs.fields_dict(Monitors) if (one := getattr(self, name)).enabled}


def _ranks(value: object, path: str, problems: Problems) -> tuple[int, ...]:
    one = isinstance(value, int) and not isinstance(value, bool)
    ranks: tuple[int, ...] = distinct(list_of(integer(0), "ranks"))([value] if one else value, path, problems)
    return ranks


def _as_in_first_form(value: object, path: str, problems: Problems) -> object:
    """Checked with the translation."""
    return value


SHARED = (
    "start_step",
    "step_interval",
    "collect_times",
    "step_count_per_record",
    "format",
    "alert",
    "dynamic_on",
    "inside_compiled",
)
"""The fields that both forms have, with the same meaning."""


@frozen(kw_only=True)
class SecondForm:
    """A file of the second form."""

    framework: str | None = setting(None, choice([*FRAMEWORKS]))
    output_dir: str = setting("./", string)
    rank: tuple[int, ...] = setting((), _ranks)
    stop_step: int | None = setting(None, integer(0))
    patch_optimizer_step: bool | None = setting(None, boolean)
    async_write: bool = setting(False, boolean)
    ndigits: object = setting(17, _as_in_first_form)
    monitors: Monitors = setting(Monitors(), object_of(Monitors))
    shared: Mapping[str, Any] = attrs.field(factory=dict)
    """Those of `SHARED` that are given."""

    def ops(self) -> dict[str, tuple[str, ...]]:
        """Monitor to the columns of its files."""
        return {name: one.ops for name, one in self.monitors.enabled().items()}

    def first_form(self, problems: Problems) -> dict[str, Any]:
        """The configuration of the first form that collects the same."""
        monitors = self.monitors.enabled()
        one: dict[str, Any] = {**self.shared, "ndigits": self.ndigits, "module_ranks": list(self.rank)}
        one["ops"] = list(dict.fromkeys(op for monitor in monitors.values() for op in monitor.ops)) or ["norm"]
        thresholds = {monitor.eps for monitor in monitors.values() if "zeros" in monitor.ops}
        if len(thresholds) > 1:
            problems.error("monitors", f"eps: {sorted(thresholds)} differ, and zeros has one threshold; write the same")
        one["eps"] = next(iter(thresholds), 1e-8)
        one["xy_distribution"] = "module" in monitors
        one["wg_distribution"] = "weight_grad" in monitors
        one["monitor_mbs_grad"] = self.monitors.weight_grad.monitor_mbs_grad and one["wg_distribution"]
        one["mv_distribution"] = "optimizer" in monitors and self.monitors.optimizer.mv_distribution
        one["param_distribution"] = "param" in monitors and self.monitors.param.param_distribution
        if "cc" in monitors:
            calls = self.monitors.cc.calls
            one["cc_distribution"] = {
                "enable": True,
                "cc_codeline": list(calls.cc_codeline),
                "cc_log_only": calls.cc_log_only,
                "cc_pre_hook": calls.cc_pre_hook,
            }
            if calls.module_ranks and len(monitors) > 1 and set(calls.module_ranks) != set(self.rank):
                problems.error(
                    "monitors.cc.module_ranks", f"{list(calls.module_ranks)} are not those of rank; write the same"
                )
            one["module_ranks"] = list(calls.module_ranks or self.rank)
        return one
