"""Tags taken apart: which tensor of which module, on which rank, in which part of the step."""

from __future__ import annotations

import re
from collections.abc import Callable

import attrs

_TAG = re.compile(
    r"(?:(?P<vpp>\d{1,18}):)?(?P<name>.*?)(?::(?P<micro>\d{1,18}))?"
    r"(?:/rank(?P<rank>\d{1,18}))?(?:/(?P<kind>[^/]*))?",
    re.DOTALL,
)
_END_OF_MODULE = re.compile(r"\.(?:input|output)(?:_[^.]*)?$")
_CALL = re.compile(r"@\d+$")

_OF_ACTIVATION = {"actv": "{}", "actv_grad": "gradient of {}"}
_OF_OLDER_TOOL = {
    "input": "input",
    "output": "output",
    "input_grad": "gradient of input",
    "output_grad": "gradient of output",
}
"""Its tags name the module alone."""
_OF_PARAMETER = {
    "param_origin": "{}",
    "param_updated": "{} after the step",
    "grad_unreduced": "gradient of {} before the reduction",
    "grad_reduced": "gradient of {}",
    "acc_grad": "gradient of {}",
    "pre_grad": "gradient of {} before the reduction",
    "post_grad": "gradient of {}",
    "exp_avg": "first moment of {}",
    "exp_avg_sq": "second moment of {}",
    "state": "optimizer state {}",
}


def split_tag(tag: str) -> tuple[str, str]:
    """Tensor and data type of a tag; the data type is "" where the tag has none.

    >>> split_tag("0:fc1.weight/rank0/grad_reduced")
    ('0:fc1.weight/rank0', 'grad_reduced')
    >>> split_tag("loss")
    ('loss', '')
    """
    tensor, slash, data_type = tag.rpartition("/")
    return (tensor, data_type) if slash else (tag, "")


@attrs.frozen(kw_only=True)
class Tag:
    """The parts of a tag such as `0:fc1.input:2/rank1/actv`; what is not there is None or ""."""

    vpp_stage: int | None
    name: str
    """Module and tensor: `fc1.input`, `fc1.weight`."""
    micro_step: int | None
    rank: int | None
    data_type: str

    @classmethod
    def parse(cls, text: str, in_micro_steps: Callable[[str], bool] = lambda data_type: True) -> Tag:
        """Any text is a tag.

        Args:
            text: the tag.
            in_micro_steps: whether rows of a data type have a micro-step; else the number is a part of the name.

        >>> tag = Tag.parse("0:blocks.0.fc1.output:3/rank1/actv_grad")
        >>> tag.module, tag.tensor, tag.micro_step, tag.rank
        ('blocks.0.fc1', 'gradient of output', 3, 1)
        >>> Tag.parse("0:fc1.weight/rank0/param_origin").tensor
        'weight'
        >>> Tag.parse("loss").name
        'loss'
        """
        found = _TAG.fullmatch(text)
        assert found is not None  # every group is optional
        vpp, name, micro, rank = (found[part] for part in ("vpp", "name", "micro", "rank"))
        if micro is not None and not in_micro_steps(found["kind"] or ""):
            name, micro = f"{name}:{micro}", None
        return cls(
            vpp_stage=None if vpp is None else int(vpp),
            name=name,
            micro_step=None if micro is None else int(micro),
            rank=None if rank is None else int(rank),
            data_type=found["kind"] or "",
        )

    @property
    def module(self) -> str:
        """Name of the module, without the number of the call; "" is the root."""
        if self.data_type in _OF_ACTIVATION:
            return _CALL.sub("", _END_OF_MODULE.sub("", self.name))
        return self.name if self.data_type in _OF_OLDER_TOOL else self.name.rpartition(".")[0]

    @property
    def tensor(self) -> str:
        """What it is of that module, in words: "weight", "gradient of input"."""
        if self.data_type in _OF_ACTIVATION:
            end = _END_OF_MODULE.search(self.name)
            return _OF_ACTIVATION[self.data_type].format(end[0][1:] if end else "tensor")
        if self.data_type in _OF_OLDER_TOOL:
            return _OF_OLDER_TOOL[self.data_type]
        own = self.name.rpartition(".")[2]
        if self.data_type in _OF_PARAMETER:
            return _OF_PARAMETER[self.data_type].format(own)
        return f"{own} ({self.data_type})" if self.data_type else own
