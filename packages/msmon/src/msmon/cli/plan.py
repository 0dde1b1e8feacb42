"""What a configuration would monitor, as a table in the terminal."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from rich.table import Table
from rich.text import Text

from msmon.cli.reading import console, text
from msmon.config import Config, dynamic_mode, output_dir

_MOST_LISTED = 20


def print_plan(config: Config) -> None:
    out = console()
    out.print(
        Text.assemble((config.source, "bold"), ": valid" + (", second form" if config.second_form else "")),
        soft_wrap=True,
    )
    for warning in config.warnings:
        out.print(Text.assemble(("warning ", "yellow"), warning), soft_wrap=True)
    monitored = list(_data_types(config)) or [("nothing", "no monitor is switched on")]
    for title, rows in (("Monitored", monitored), ("When and where", _conditions(config))):
        table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, what in rows:
            table.add_row(Text(name), text(what))
        out.print()
        out.print(table)


def _data_types(config: Config) -> Iterator[tuple[str, str]]:
    """Data types as they appear in the output, with what is in them."""
    if config.collects_actv:
        yield "actv", f"activations of {_modules(config)}"
    if config.collects_actv_grad:
        yield "actv_grad", f"gradients of the activations of {_modules(config)}"
    if config.wg_distribution:
        each = ", after each micro-batch" if config.monitor_mbs_grad else ""
        yield "grad_unreduced", f"gradients of {_parameters(config)} on this rank{each}"
        yield "grad_reduced", f"gradients of {_parameters(config)} as the optimizer consumes them"
    if config.mv_distribution:
        yield "exp_avg, exp_avg_sq", f"optimizer moments of {_parameters(config)}"
        yield "state", f"what else the optimizer keeps of {_parameters(config)}"
    if config.param_distribution:
        yield "param_origin, param_updated", f"{_parameters(config)} before and after the optimizer step"
    if config.mg_direction:
        yield "other", f"agreement of gradient and momentum of {_parameters(config)}"
    if config.ur_distribution:
        yield "adam_update, adam_ratio", f"histograms of Adam's update of {_parameters(config)}"
    cc = config.cc_distribution
    if cc.enable:
        sides = "inputs and results" if cc.cc_pre_hook else "results"
        where = f", called from {_listed(cc.cc_codeline)}" if cc.cc_codeline else ""
        end = "; calls are logged, then the program ends" if cc.cc_log_only else ""
        yield "other", f"{sides} of collectives{where}{end}"
    if config.recording_l2_features:
        for feature, modules in config.to_dict()["l2_targets"].items():
            every = "every module that qualifies" if feature == "linear_hook" else "no module is named"
            yield feature, _listed(modules) if modules else every
    if config.stack_info:
        yield "stack_info", "call stack of each module in the first step"
    if config.print_struct:
        yield "module_struct", "inputs and outputs of every module, after the first step; then the program ends"


def _modules(config: Config) -> str:
    if config.second_form:
        parts = config.second_form.monitors.module.targets
        return f"modules with {_listed(parts)} in their names" if parts else "all modules"
    named = _listed([target.key for target in config.targets])
    if not config.targets:
        return "all modules"
    return f"all modules, of which as specified: {named}" if config.all_xy else named


def _parameters(config: Config) -> str:
    return f"the parameters of {_listed([one.key for one in config.targets])}" if config.targets else "all parameters"


def _conditions(config: Config) -> Iterator[tuple[str, str]]:
    for monitor, ops in config.second_form.ops().items() if config.second_form else [("", config.ops)]:
        yield f"statistics {'of ' if monitor else ''}{monitor}".rstrip(), ", ".join(ops)
    yield "steps", _steps(config)
    yield "ranks", ", ".join(map(str, config.module_ranks)) or "all"
    yield "format", ", ".join(config.format)
    files = [name for name in config.format if name != "api"]
    if files or config.alert.dump:
        yield "directory", config.second_form.output_dir if config.second_form else str(output_dir())
    if config.append_output:
        yield "continues", "runs begun between " + " and ".join(config.append_output)
    yield "alerts", _alerts(config)
    framework = next((name for name in ("torch", "mindspore") if find_spec(name) is not None), None)
    if framework is not None:
        yield "kernels", kernels(framework)


def kernels(framework: str) -> str:
    """Which kernel reads the tensors of each device."""
    chosen_kernels = import_module(f"msmon_stats.{framework}").chosen_kernels
    return ", ".join(f"{kernel} on {kind}" for kind, kernel in chosen_kernels().items())


def _alerts(config: Config) -> str:
    rules = [
        f"{r.rule_name}({', '.join(f'{key}={value}' for key, value in r.args.items())})" for r in config.alert.rules
    ]
    return ", then ".join(rules) + (", written to anomaly.json" if config.alert.dump else "") if rules else "none"


def _steps(config: Config) -> str:
    if config.collect_times == 0:
        return "none, since collect_times is 0"
    first = f"from step {config.start_step}"
    if dynamic_mode():
        first = (
            "dynamic mode, from the next step" if config.dynamic_on else "dynamic mode, when dynamic_on is set to true"
        )
    every = "every step" if config.step_interval == 1 else f"one of every {config.step_interval} steps"
    forever = config.collect_times >= Config().collect_times
    return f"{first}, {every}" + ("" if forever else f", {config.collect_times} in all")


def _listed(names: Iterable[str]) -> str:
    found = [name or '""' for name in names]
    rest = len(found) - _MOST_LISTED
    return ", ".join(found[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")
