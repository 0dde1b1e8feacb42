"""What a configuration asks the hooks for, and the functions that compute what hooks do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from msmon.config import CcConfig, Config
from msmon.heat_maps import EDGES
from msmon_hooks import CollectiveRequest, Elements, Feature, Request, Sides, Targets
from msmon_stats import features

_INSIDE: dict[bool | str, Literal["", "stored", "all"]] = {False: "", "stored": "stored", True: "all"}


def make_request(
    config: Config,
    *,
    main_grad: bool,
    process_groups: Any = None,
    on_structure: Callable[[dict[str, Any]], None],
    on_stacks: Callable[[dict[str, str]], None],
    on_parameters: Callable[[str, list[dict[str, Any]]], None] | None = None,
    on_inside: Callable[[dict[str, dict[str, list[str]]]], None] | None = None,
    on_collectives: Callable[[dict[str, list[dict[str, str]]]], None] | None = None,
) -> Request:
    """The request of a configuration.

    Args:
        config: the configuration in force.
        main_grad: read `param.main_grad` where it exists.
        process_groups: ranks that hold the same tensors, as the framework's hooks describe them.
        on_structure: receives the document of `print_struct`.
        on_stacks: receives the stacks of `stack_info`.
        on_parameters: receives engine and parameters of a model that has changed.
        on_inside: receives how the rows from inside of compiled graphs are read.
        on_collectives: receives for which ranks collectives are called.
    """
    return Request(
        targets=make_targets(config),
        activations=config.collects_actv,
        activation_gradients=config.collects_actv_grad,
        inside_compiled=_INSIDE[config.inside_compiled],
        weight_gradients=config.wg_distribution,
        each_micro_step=config.monitor_mbs_grad,
        moments=config.mv_distribution,
        moments_after_update=config.second_form is not None,
        weights=config.param_distribution,
        main_grad=main_grad,
        process_groups=process_groups,
        short_names=config.squash_name,
        sign_agreement=features.sign_agreement if config.mg_direction else None,
        adam_histograms=_adam_histograms if config.ur_distribution and "tensorboard" in config.format else None,
        l2_features=_l2_features(config) if config.recording_l2_features else {},
        on_structure=on_structure if config.print_struct else None,
        on_stacks=on_stacks if config.stack_info and "csv" in config.format else None,
        on_parameters=on_parameters,
        on_inside=on_inside,
        on_collectives=on_collectives,
        collectives=_collectives(config.cc_distribution) if config.cc_distribution.enable else None,
        ends_program=ends_program(config),
    )


def ends_program(config: Config) -> bool:
    """Whether the program ends, on all ranks, after the first step."""
    return config.print_struct or (config.cc_distribution.enable and config.cc_distribution.cc_log_only)


def _collectives(config: CcConfig) -> CollectiveRequest:
    return CollectiveRequest(wants=config.wants, inputs=config.cc_pre_hook, log_only=config.cc_log_only)


def make_targets(config: Config) -> Targets:
    """The modules and parameters that the configuration names."""
    wanted = {
        target.key: Sides(
            elements={side: Elements(length=one.length, index=one.index) for side, one in target.sides.items()}
        )
        for target in config.targets
    }
    parts = config.second_form.monitors.module.targets if config.second_form else ()
    return Targets(wanted, all_modules=config.all_xy, module_parts=parts)


def _l2_features(config: Config) -> dict[str, Feature]:
    compute: dict[str, Callable[..., Any]] = {
        "attention_hook": partial(features.attention_features, layout=config.sa_order),
        "linear_hook": features.linear_features,
        "moe_router_weight_hook": features.router_similarity,
        "moe_router_logit_hook": features.router_entropy,
    }
    return {
        kind: Feature(modules=names, compute=function)
        for kind, function in compute.items()
        if (names := getattr(config.l2_targets, kind)) is not None
    }


def _adam_histograms(exp_avg: Any, exp_avg_sq: Any, *, step: Any, betas: tuple[Any, Any], eps: float) -> Any:
    return features.adam_histograms(exp_avg, exp_avg_sq, EDGES, step=step, betas=betas, eps=eps)
