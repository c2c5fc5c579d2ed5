"""Plans: the shipped ones are whole, and whatever is wrong in one is a single line that names the nearest."""

from pathlib import Path

import pytest

from diffusionlens.errors import InputError
from diffusionlens.plans.needs import without
from diffusionlens.plans.plan_files import PLANS, read_plan
from diffusionlens.plans.published import published_names, read_published
from tests.plans.tiny import PLAN, write_plan


@pytest.mark.parametrize("name", ["paper", "quick", "training"])
def test_shipped_plans_are_whole(name: str) -> None:
    plan = read_plan(name)
    path = PLANS.shipped()[name]
    assert read_plan(path) == plan  # by path as by name
    head = path.read_text().splitlines()
    assert head[0].startswith("# ")
    assert any(f"report {name}" in line for line in head[:8])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title: Tiny", "titel: Tiny", "titel is not a key of a plan; did you mean title?"),
        ("needs: [masks]", "need: [masks]", "data.dense.need is not a key of a plan; did you mean needs?"),
        ("analyses: [pib, pca]", "analysis: [pib]", "sections.pib.analysis is not a key of a plan; did you mean analyses?"),
        ("analyses: [pib, pca]", "analyses: [pibb]", "section pib: 'pibb' is no analysis .*did you mean 'pib'"),
        ("task: segmentation\n    tokens: patch\n", "task: segmentaton\n", "task is 'segmentaton', did you mean 'segmentation'"),
        ("kind: table", "kind: tables", "kind is 'tables', did you mean 'table'"),
        ("tokens: patch\n", "tokens: patches\n", "section heads: .*did you mean 'patch'"),
        ("rates: [0.003]}", "rate: [0.003]}", "did you mean 'rates'"),
        ("figures: [gain_bars]", "figures: [gain_bar]", "'gain_bar' is no figure, did you mean 'gain_bars'"),
        ("{section: pib, metric", "{section: pip, metric", "'pip' is no section, did you mean 'pib'"),
        ("title: PiB (%)}", "titel: PiB (%)}", "titel is not a key of a plan; did you mean title?"),
        ("published: main", "published: mian", "'mian' is no published table, did you mean 'main'"),
        ("data: pictures, analyses: [similarity]", "data: picture, analyses: [similarity]", "did you mean 'pictures'"),
        ("needs: [masks], train: true", "needs: [masks]", "has none; give it train: true"),
        ("seeds: 2\n", "seeds: many\n", "sections.heads.seeds: .*got 'many'"),
        ("    title: Heads\n", "", "sections.heads.title is missing"),
        ("  main:", "  ma.in:", "letters, digits and '_'"),
        ("  main:", "  again: {kind: explorer, title: Twice, data: pictures}\n  main:", "room for one explorer"),
        ("title: Tiny", "title: Tiny\ntitle: Again", "given twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in PLAN
    (tmp_path / "plan.yaml").write_text(PLAN.replace(old, new, 1))
    with pytest.raises(InputError, match=said) as refused:
        read_plan(tmp_path / "plan.yaml")
    assert "\n" not in str(refused.value)


def test_an_unknown_plan_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no plan 'papers'.*did you mean 'paper'"):
        read_plan("papers")


def test_settings(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    plan = read_plan(path, ["images=7", "pib.images=3", "heads.options.iterations=9", "pib.options.pib.hit=center"])
    assert (plan.images, plan.sections["pib"].images) == (7, 3)  # type: ignore[union-attr]
    assert plan.sections["heads"].options["iterations"] == 9  # type: ignore[union-attr]
    assert plan.sections["heads"].options["points"] == 16  # type: ignore[union-attr]
    assert plan.sections["pib"].options == {"pib.hit": "center"}  # type: ignore[union-attr]
    for setting, said in (
        ("pibb.images=3", "no section and no key 'pibb'; did you mean 'pib'"),
        ("pib.image=3", "did you mean images"),
        ("pib.options.pib.hits=center", "did you mean 'hit'"),
        ("heads.options.iteration=3", "did you mean 'iterations'"),
        ("images", "wanted key=value"),
    ):
        with pytest.raises(InputError, match=said):
            read_plan(path, [setting])


def test_plans_extend_one_another(tmp_path: Path) -> None:
    write_plan(tmp_path)
    (tmp_path / "mine.yaml").write_text("extends: tiny\nsections:\n  pib: {images: 4}\n")
    plan = read_plan(tmp_path / "mine.yaml")
    assert plan.sections["pib"].images == 4  # type: ignore[union-attr]
    assert list(plan.sections) == list(read_plan(tmp_path / "tiny.yaml").sections)


def test_parts_are_left_out(tmp_path: Path) -> None:
    plan = read_plan(write_plan(tmp_path))
    fewer = without(plan, ["dense"])
    assert list(fewer.sections) == ["pib", "similarity", "look", "main"]
    assert [column.section for column in fewer.sections["main"].columns] == ["pib"]  # type: ignore[union-attr]
    assert "main" not in without(plan, ["dense", "pib"]).sections
    with pytest.raises(InputError, match="no such role or section"):
        without(plan, ["depth"])
    with pytest.raises(
        InputError, match=r"--without segmentatio: .* \(it has pictures, segmentation, pib, .*mean 'segmentation'"
    ) as said:
        without(read_plan("quick"), ["segmentatio"])
    known = str(said.value).partition("(it has ")[2].partition(")")[0].split(", ")
    assert len(known) == len(set(known))
    with pytest.raises(InputError, match="leaves no section"):
        without(plan, ["dense", "pictures"])


def test_published_numbers_are_those_of_the_paper() -> None:
    """The abstract of arXiv 2605.23868 and its stated gains; DINO in table 1 of arXiv 2602.22394."""
    main = read_published("main")
    place = main.column("segmentation", "miou", "voc")
    assert place is not None
    softmax, entmax = main.rows["softmax"], main.rows["entmax-1.5"]
    assert (softmax[place], entmax[place]) == (42.80, 48.78)
    assert [round(b - a, 2) for a, b in zip(softmax, entmax, strict=True)] == [0.56, 5.98, 2.12, 1.08]
    assert main.column("depth", "rmse", "nyuv2") is None  # absolute values are not public
    assert read_published("pib").rows["DINO ViT"] == (45.3,)
    for name in published_names():
        assert "arXiv" in read_published(name).source
