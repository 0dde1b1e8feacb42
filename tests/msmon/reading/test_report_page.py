"""The page as a file: what it says and holds, its size, and that a name can never become markup."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msmon.cli import main
from msmon.reading import open_run, write_diff_page, write_report
from msmon.reading.binning import make_bins
from msmon.reading.index import TensorKey, build_index
from msmon.reading.page import Page, TypeSeries, write_page

from .files import write_anomalies, write_rank

EVIL = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'&lt;`${1}",
    "{{meta}}",
    "\u2028\x1b[31m",
]


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


def meta_of(page: str) -> dict[str, Any]:
    return json.loads(unpack(re.search(r'id="meta">([^<]*)<', page)[1]))


def array_of(page: str, blob: str, half: bool) -> np.ndarray:
    raw = np.frombuffer(unpack(re.search(rf'id="{blob}">([^<]*)<', page)[1]), dtype=np.uint8)
    parts = raw.reshape(2 if half else 4, -1).astype(np.uint32)
    return (
        sum(part << (8 * (i + (2 if half else 0))) for i, part in enumerate(parts)).astype(np.uint32).view(np.float32)
    )


def panel(meta: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in meta["panels"] if one["id"] == name)


def test_the_page_holds_every_value_of_a_small_run(trained: Callable[[str], Path], tmp_path: Path) -> None:
    directory = trained("nan")
    written = write_report(directory, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert written.size == len(page.encode())
    meta = meta_of(page)
    assert [type_["name"] for type_ in meta["types"]] == list(open_run(directory).data_types)
    run = open_run(directory)
    type_ = next(one for one in meta["types"] if one["name"] == "exp_avg")
    index = build_index(run, "exp_avg")
    assert type_["first"] == type_["last"] == index.steps.tolist()
    names = [meta["names"][i][2] for i in type_["tensors"]]
    parameters = [entry["name"] for entry in run.info["tensors"]]
    assert names == parameters, "the order of the model"
    found = array_of(page, type_["blobs"]["norm"]["lines"], type_["half"]).reshape(2, len(names), -1)
    from msmon.reading.blocks import read_blocks

    for line, rank in enumerate(run.ranks.values()):
        (block,) = read_blocks(rank, index)
        rows = [next(n for row, n in index.rows.items() if row.tensor.name == name) for name in names]
        np.testing.assert_array_equal(found[line], block.values[0].T[rows].astype(np.float32))


def test_the_top_tells_the_run_and_how_the_fault_spread(trained: Callable[[str], Path], tmp_path: Path) -> None:
    write_report(trained("nan"), tmp_path / "r.html")
    meta = meta_of((tmp_path / "r.html").read_text())
    facts = dict(panel(meta, "run")["facts"])
    assert facts["Ranks"] == "0, 1"
    assert facts["Engine"] == "plain"
    assert facts["Steps"] == "0 to 7, 8 of them recorded"
    assert facts["Framework"].startswith("torch ")
    assert panel(meta, "coverage")["title"] == "Coverage: complete"
    anomalies = panel(meta, "anomalies")
    assert anomalies["title"].endswith("the first at step 5")
    assert anomalies["text"][0].startswith("First: step 5, weights, rank 1: blocks.2.mlp.fc.weight (param_origin")
    assert "weights: blocks.2; forward: blocks.2 → blocks.3 → norm → head" in anomalies["text"][1]
    assert re.search(r"step 5: \d+ tensors on 1 rank, step 6: ", anomalies["text"][2])
    table = panel(meta, "anomaly-table")
    assert table["rows"][1][:6] == [5, 0, "forward", 1, "actv", "blocks.2.mlp.fc.output"]
    assert table["links"][1]["name"] == "blocks.2.mlp.fc.output"
    # The page begins where the fault does, and marks it there.
    assert meta["first"] == "param_origin"
    type_ = next(one for one in meta["types"] if one["name"] == "actv")
    at = [meta["names"][i][2] for i in type_["tensors"]].index("blocks.2.mlp.fc.output")
    marks = set(zip(type_["marks"][::2], type_["marks"][1::2], strict=True))
    assert {step for row, step in marks if row == at} == {5, 6, 7}


def test_missing_tensors_notes_and_skipped_steps_are_said(tmp_path: Path) -> None:
    coverage = {
        "expected": {"actv": 3},
        "seen": {"actv": 1},
        "missing": [{"data_type": "actv", "name": "a", "reason": "hook did not fire"}, {"name": 3}, "nonsense"],
        "notes": ["an engine of an unknown version"],
        "skipped_steps": [2, 3, 4, 9],
    }
    for rank in (0, 1):
        write_rank(tmp_path, {"actv": [(0, "b.output", 0, 1.0)]}, rank=rank, coverage=coverage, info={"world_size": 8})
    write_report(tmp_path, tmp_path / "r.html")
    meta = meta_of((tmp_path / "r.html").read_text())
    one = panel(meta, "coverage")
    assert one["title"] == "Coverage: 2 missing"
    assert one["text"] == [
        "Expected 6 tensors over all data types and ranks, saw 2.",
        "The loss scaler skipped 4 steps: 2 to 4, 9.",
        "an engine of an unknown version",
    ]
    assert one["rows"][0] == ["actv", "a", "hook did not fire", 2]
    assert dict(panel(meta, "run")["facts"])["Ranks"] == "0, 1 (2 of 8)"
    assert panel(meta, "anomalies")["title"] == "Anomalies: none"


def test_a_data_type_without_rows_is_said_first(tmp_path: Path) -> None:
    apart = [{"data_type": "actv_grad", "name": "w", "reason": "why", "kind": "never called as a module"}]
    coverage = {"seen": {"actv": 1}, "without_rows": {"actv_grad": "it failed"}, "apart": apart}
    write_rank(tmp_path, {"actv": [(0, "b.output", 0, 1.0)]}, coverage=coverage)
    write_report(tmp_path, tmp_path / "r.html")
    first = meta_of((tmp_path / "r.html").read_text())["panels"][0]
    assert (first["id"], first["title"]) == ("coverage", "Coverage: no actv_grad")
    assert first["text"][0] == "No actv_grad: it failed."
    assert "Counted apart: 1 never called as a module." in first["text"]
    assert first["rows"] == [["actv_grad", "w", "why (apart)", 1]]


def test_no_name_can_become_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 2.0)):
        rows = {"actv": [(s, f"{evil}.output", 0, factor * (1.0 + s)) for s in range(3) for evil in EVIL]}
        coverage = {
            "expected": {"actv": 9},
            "seen": {"actv": 5},
            "missing": [{"data_type": "actv", "name": EVIL[0], "reason": EVIL[1]}],
        }
        write_rank(tmp_path / name, rows, coverage=coverage, info={"engine": EVIL[0]})
        write_anomalies(
            tmp_path / name, 0, [{"step": 1, "tag_name": f"0:{EVIL[0]}.output:0/rank0/actv", "message": EVIL[1]}]
        )
    write_report(tmp_path / "a", tmp_path / "r.html")
    write_diff_page(tmp_path / "a", tmp_path / "b", tmp_path / "d.html")
    write_rank(tmp_path / "harmless", {"actv": [(0, "m.output", 0, 1.0)]})
    write_report(tmp_path / "harmless", tmp_path / "h.html")
    expected = elements(tmp_path / "h.html")
    for file in ("r.html", "d.html"):
        page = (tmp_path / file).read_text()
        assert EVIL[0] not in page
        assert EVIL[1] not in page
        assert elements(tmp_path / file) == expected
        assert "default-src 'none'" in page
        assert {name for _, _, name in meta_of(page)["names"]} == {f"{evil}.output" for evil in EVIL}


def elements(path: Path) -> dict[tuple[str, tuple[str, ...]], int]:
    """How often each element with its attributes occurs; those that hold arrays count once."""
    found: dict[tuple[str, tuple[str, ...]], int] = {}

    class Counter(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = tuple(f"{name}={value}" for name, value in attrs)
            array = any(re.fullmatch(r"id=b\d+", value) for value in values)
            found[tag, () if array else values] = 1 if array else found.get((tag, values), 0) + 1
            assert not any(name in ("src", "href") or name.startswith("on") for name, _ in attrs)

    Counter().feed(path.read_text())
    return found


@pytest.mark.parametrize("limit", [260_000, 400_000, 700_000])
def test_a_page_is_thinned_until_it_fits_and_says_how(tmp_path: Path, limit: int) -> None:
    random = np.random.default_rng(0)
    names = [f"layers.{i // 6}.p{i % 6}.weight" for i in range(120)]
    run = tmp_path / "run"
    for rank in range(4):
        noise = np.exp(random.standard_normal((60, 120)))
        noise[33, 77] = 1e6 if rank == 2 else 1
        rows = {"grad_unreduced": [(s, n, noise[s, i], -noise[s, i]) for s in range(60) for i, n in enumerate(names)]}
        write_rank(run, rows, ops=("norm", "min"), rank=rank, steps_per_file=60)
    whole = write_report(run, tmp_path / "whole.html")
    assert not whole.thinned
    written = write_report(run, tmp_path / "r.html", limit=limit)
    assert written.size <= limit
    assert written.size > 0.6 * min(limit, whole.size), "the room is used"
    page = (tmp_path / "r.html").read_text()
    meta = meta_of(page)
    if limit < whole.size:
        assert meta["fit"] == list(written.thinned)
        assert written.thinned[0].startswith("grad_unreduced: ")
    (type_,) = meta["types"]
    # The spike is still there, in the bin that has its step, whatever was thinned.
    at = [meta["names"][i][2] for i in type_["tensors"]].index(names[77])
    bin_ = next(i for i, last in enumerate(type_["last"]) if last >= 33)
    blob = type_["blobs"]["norm"]
    if blob["worst"] is not None:
        worst = array_of(page, blob["worst"], type_["half"]).reshape(len(type_["tensors"]), -1)
        assert worst[at, bin_] == pytest.approx(1e6, rel=0.01)
    detail = at if type_["detail"] is None else type_["detail"].index(at)
    lines = array_of(page, blob["lines"], type_["half"]).reshape(4, -1, len(type_["first"]))
    assert lines[2, detail, bin_] == pytest.approx(1e6, rel=0.01)
    assert lines[1, detail, bin_] < 1000


def test_values_that_do_not_compress_are_thinned_further(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = 10.0 ** random.uniform(-30, 30, (100, 200)) * random.random((100, 200))
    rows = [(step, f"layers.{i}.weight", values[step, i]) for step in range(100) for i in range(200)]
    write_rank(tmp_path / "run", {"grad_reduced": rows}, steps_per_file=100)
    whole = write_report(tmp_path / "run", tmp_path / "r.html")
    assert not whole.thinned
    less = write_report(tmp_path / "run", tmp_path / "r.html", limit=whole.size - 2000)
    assert less.size <= whole.size - 2000
    assert less.thinned


def test_long_names_need_room_too(tmp_path: Path) -> None:
    """What cannot be estimated before it is packed is made up for afterwards."""
    random = np.random.default_rng(0)
    names = [random.bytes(60).hex() for _ in range(1500)]
    values = np.exp(random.standard_normal((3, 1500)))
    rows = [(s, n, values[s, i]) for s in range(3) for i, n in enumerate(names)]
    write_rank(tmp_path / "run", {"grad_reduced": rows})
    limit = 250_000
    written = write_report(tmp_path / "run", tmp_path / "r.html", limit=limit)
    assert 0.6 * limit < written.size <= limit
    assert "tensors have no row" in written.thinned[0]


def test_only_some_tensors(trained: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "r.html"
    assert main(["report", str(trained("nan")), "-o", str(output), "--tensors", r"blocks\.1\.mlp"]) == 0
    assert f"{output}: 0." in capsys.readouterr().out.replace("\n", "")
    names = [name for _, _, name in meta_of(output.read_text())["names"]]
    assert "blocks.1.mlp.fc.weight" in names
    assert all("blocks.1.mlp" in name for name in names)
    assert main(["report", str(trained("nan")), "-o", str(output), "--tensors", "("]) == 2
    assert "no regular expression" in capsys.readouterr().err
    # Nothing left is a page that says so, not an error.
    assert main(["report", str(trained("nan")), "-o", str(output), "--tensors", "nowhere"]) == 0
    assert "no tensor has a name that contains 'nowhere'" in json.dumps(meta_of(output.read_text())["panels"])


def test_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "no"), "-o", str(tmp_path / "r.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
    write_rank(tmp_path / "run", {"actv": [(0, "m.output", 0, 1.0)]})
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "no" / "r.html")]) == 1
    assert "r.html" in capsys.readouterr().err


def test_the_page_of_a_comparison(trained: Callable[[str], Path], tmp_path: Path) -> None:
    result, _ = write_diff_page(trained("plain"), trained("bf16"), tmp_path / "d.html", rtol=1e-5)
    page = (tmp_path / "d.html").read_text()
    meta = meta_of(page)
    assert meta["title"] == "msmon diff: first difference at step 4"
    assert panel(meta, "first-difference")["text"][0].startswith(
        "Step 4: blocks.1.attention.qkv.output (actv, micro-step 0, rank 0)"
    )
    first = panel(meta, "first-table")
    assert first["rows"][0][:3] == [4, "actv", "blocks.1.attention.qkv.output"]
    type_ = next(one for one in meta["types"] if one["name"] == "actv")
    at = [meta["names"][i][2] for i in type_["tensors"]].index("blocks.1.attention.qkv.output")
    excess = array_of(page, type_["blobs"]["max"]["worst"], type_["half"]).reshape(len(type_["tensors"]), -1)
    assert (excess[at, :4] == 0).all()
    assert excess[at, 4] == pytest.approx(result.first[0].excess, rel=1e-3)
    lines = array_of(page, type_["blobs"]["max"]["lines"], type_["half"]).reshape(2, len(type_["tensors"]), -1)
    assert lines[0, at, 4] == pytest.approx(result.first[0].a, rel=1e-6)
    assert lines[1, at, 4] == pytest.approx(result.first[0].b, rel=1e-6)


@pytest.mark.parametrize("kind", ["report", "diff"])
@pytest.mark.parametrize("of_three", [0, 1, 3], ids=["constant", "some noise", "noise"])
@pytest.mark.parametrize("limit", [150_000, 400_000, 2_000_000])
def test_no_values_make_a_page_too_large(tmp_path: Path, kind: str, of_three: int, limit: int) -> None:
    """More values than are looked at to see what they cost: bits that nothing makes smaller, and others."""
    random = np.random.default_rng(0)
    tensors, steps = 600, np.arange(400)
    bits = random.integers(0, 0x7F800000, (3, 2, tensors, len(steps)), dtype=np.uint32)
    bits[:, :, np.arange(tensors) % 3 >= of_three] = 0
    series = TypeSeries(
        data_type="exp_avg",
        stats=("norm", "min"),
        steps=steps,
        bins=make_bins(steps, len(steps)),
        tensors=[TensorKey(0, 0, f"layers.{i // 3}.{i % 3}") for i in range(tensors)],
        layers=[f"layers.{i // 3}" for i in range(tensors)],
        lines=bits,
        worst=bits[0],
        interest=np.arange(tensors),
    )
    page = Page(kind=kind, title="", subtitle="", panels=[], series=[series], lines=["0", "1", "2"], worst_label="",
                mark_label="")  # fmt: skip
    written = write_page(tmp_path / "r.html", page, limit=limit)
    assert written.size == (tmp_path / "r.html").stat().st_size <= limit
    assert bool(written.thinned) == (of_three > 0)
