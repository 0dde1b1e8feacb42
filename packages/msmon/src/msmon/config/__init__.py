"""The configuration: read from a file, checked once, and then frozen. Imports no framework."""

from ._problems import ConfigError
from .dynamic_switch import DynamicSwitch, Period
from .environment import dynamic_mode, output_dir
from .load import load_config, parse_config
from .model import AlertConfig, CcConfig, Config, L2Config, RuleConfig
from .selector import Selector, Target

__all__ = [
    "AlertConfig",
    "CcConfig",
    "Config",
    "ConfigError",
    "DynamicSwitch",
    "L2Config",
    "Period",
    "RuleConfig",
    "Selector",
    "Target",
    "dynamic_mode",
    "load_config",
    "output_dir",
    "parse_config",
]
