"""Fields that are valid each, but not together: warnings, and what then is in force."""

import attrs

from msmon.config.model import SWITCHES, Config
from msmon.config.problems import shown


def made_consistent(config: Config) -> Config:
    """The configuration with its warnings, and with switched off what could not work."""
    warnings = _warnings(config)
    if config.ur_distribution and "tensorboard" not in config.format:
        warnings.append('ur_distribution: off, since it needs format "tensorboard"')
        config = attrs.evolve(config, ur_distribution=False)
    if not config.monitors:
        warnings.append(f"nothing is monitored; switch on one of {', '.join(SWITCHES)}, cc_distribution.enable")
    return attrs.evolve(config, warnings=(*config.warnings, *warnings))


def _warnings(config: Config) -> list[str]:
    found = []
    if config.forward_only and config.backward_only:
        found.append(
            "forward_only, backward_only: both are true, so neither activations nor their gradients are collected"
        )
    for key in ("all_xy", "forward_only", "backward_only", "inside_compiled"):
        if getattr(config, key) and not config.xy_distribution:
            found.append(f"{key}: no effect without xy_distribution")
    if config.monitor_mbs_grad and not config.wg_distribution:
        found.append("monitor_mbs_grad: no effect without wg_distribution")
    if config.stack_info and "csv" not in config.format:
        found.append('stack_info: no effect, since it needs format "csv"')
    if config.alert.dump and not config.alert.rules:
        found.append("alert.dump: no effect without alert.rules")
    cc = config.cc_distribution
    if not cc.enable and (cc.cc_codeline or cc.cc_pre_hook or cc.cc_log_only):
        found.append("cc_distribution: no effect without cc_distribution.enable")
    return found + _l2_warnings(config) + _stage_warnings(config)


def _l2_warnings(config: Config) -> list[str]:
    named = [key for key, names in attrs.asdict(config.l2_targets).items() if names is not None]
    if named and not config.recording_l2_features:
        return ["l2_targets: no effect without recording_l2_features"]
    if config.recording_l2_features and not named:
        return ["recording_l2_features: no effect without l2_targets"]
    if config.recording_l2_features and config.l2_targets.attention_hook == ():
        return ["l2_targets.attention_hook: an empty list collects nothing; name the attention modules"]
    return []


def _stage_warnings(config: Config) -> list[str]:
    """A name with and without stage prefix: the one with the prefix is more exact."""
    everywhere = {target.name for target in config.targets if target.stage is None}
    twice = [shown(target.key) for target in config.targets if target.stage is not None and target.name in everywhere]
    return (
        [f"targets: {', '.join(twice)} named with and without stage; on that stage the former holds"] if twice else []
    )
