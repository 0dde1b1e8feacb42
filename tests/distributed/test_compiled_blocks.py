"""Reads inside of compiled graphs under DDP and FSDP2: the training is the same, and rows are those of eager mode."""

import os

import pytest

WHOLE = bool(os.environ.get("MSMON_WHOLE_TABLE"))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"] if WHOLE else ["aot_eager"])
@pytest.mark.parametrize("way", ["ddp blocks", "ddp", "fsdp2"])
def test_compiled_blocks(ranks, way, backend):
    for answer in ranks.run("compiled_blocks", "trained", way=way, backend=backend, timeout=900 if WHOLE else 120):
        assert answer["equal"]
        assert answer["graphs"] == 0
        assert answer["rows"] > 150
        assert answer["lost"] == answer["more"] == answer["wrong"] == answer["doubled"] == []
