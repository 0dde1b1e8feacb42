"""The configuration: read from a file, checked once, and then frozen. Imports no framework."""

from msmon.config.dynamic_switch import DynamicSwitch, Period
from msmon.config.environment import dynamic_mode, output_dir
from msmon.config.load import load_config, parse_config
from msmon.config.model import AlertConfig, CcConfig, Config, L2Config, RuleConfig
from msmon.config.problems import ConfigError
from msmon.config.second_form import FRAMEWORKS, SecondForm
from msmon.config.second_form_loading import is_second_form, load_either, parse_second_form
from msmon.config.selector import Selector, Target
from msmon.config.watch import WATCH, watch_fields

__all__ = [
    "FRAMEWORKS",
    "WATCH",
    "AlertConfig",
    "CcConfig",
    "Config",
    "ConfigError",
    "DynamicSwitch",
    "L2Config",
    "Period",
    "RuleConfig",
    "SecondForm",
    "Selector",
    "Target",
    "dynamic_mode",
    "is_second_form",
    "load_config",
    "load_either",
    "output_dir",
    "parse_config",
    "parse_second_form",
    "watch_fields",
]
