"""Data find their role before any work, and what lacks is said in one line."""

from pathlib import Path

import pytest

from diffusionlens.data import open_data
from diffusionlens.errors import InputError
from diffusionlens.plans.jobs import jobs_of
from diffusionlens.plans.needs import Pair, assign, limited
from diffusionlens.plans.plan_files import read_plan
from diffusionlens.plans.schema import Plan
from tests.plans.tiny import DATA, TRAIN, write_plan


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return read_plan(write_plan(tmp_path))


def test_data_go_where_they_fit(plan: Plan) -> None:
    found = assign(plan, [DATA], [TRAIN])
    assert found == {"pictures": [Pair("scenes", DATA)], "dense": [Pair("scenes", DATA, TRAIN)]}


def test_a_role_before_the_equals_sign(plan: Plan) -> None:
    more = "scenes:?n=9&seed=5"
    found = assign(plan, [f"pictures={more}", f"dense.d={DATA}"], [f"dense={TRAIN}"])
    assert found["pictures"] == [Pair("scenes", more)]
    assert found["dense"] == [Pair("d", f"d={DATA}", TRAIN)]


def test_training_sets_go_by_label(plan: Plan) -> None:
    found = assign(plan, ["a=scenes:?n=8", "b=scenes:?n=9"], ["b=scenes:?n=4", "a=scenes:?n=5"])
    assert [(pair.label, pair.train) for pair in found["dense"]] == [("a", "a=scenes:?n=5"), ("b", "b=scenes:?n=4")]
    assert found["pictures"][0].label == "a"


@pytest.mark.parametrize(
    ("data", "train", "said"),
    [
        ([], [], r"pictures: pictures with boxes \(--data \"pictures=.*; dense: pictures with masks .*--train.*--without ROLE"),
        ([DATA], [], "dense: what heads learn from"),
        ([DATA], [TRAIN, "other=scenes:?n=4"], "could both be what heads"),
        (["a=scenes:?n=8", "a=scenes:?n=9"], ["scenes:?n=4"], "two data sets are called 'a'"),
        ([DATA, "pictures=scenes:?n=3"], [TRAIN], "two data sets are called 'scenes'"),
        (["x=scenes:?n=3", "pictures.p=scenes:?n=4"], [TRAIN], None),
        (["pictures.a=scenes:?n=3", "pictures.b=scenes:?n=4", "dense.c=scenes:?n=4"], [TRAIN], "is used by no section"),
        ([DATA], [TRAIN, "z=scenes:?n=4&classes=4", "scenes=scenes:?n=4"], "could both be"),
        ([DATA], ["scenes:?n=4&classes=4"], "need the same"),
        (["scenes:?m=3"], [], "'m' in"),
    ],
)  # fmt: skip
def test_what_lacks_is_one_line(plan: Plan, data: list[str], train: list[str], said: str | None) -> None:
    if said is None:
        assign(plan, data, train)
        return
    with pytest.raises(InputError, match=said) as refused:
        assign(plan, data, train)
    assert "\n" not in str(refused.value)


def test_data_without_what_the_named_role_needs(plan: Plan, shared_data: Path) -> None:
    depth = f"pictures=nyuv2:{shared_data}/indoor_rgbd?split=test"
    with pytest.raises(InputError, match="is given as pictures, which needs pictures with boxes; it has no boxes"):
        assign(plan, [depth], [])
    with pytest.raises(InputError, match=r"it has depth\) is used by no section"):
        assign(plan, [DATA, depth.partition("=")[2]], [TRAIN])


def test_paper_takes_what_is_usual(shared_data: Path) -> None:
    """VOC for boxes and masks but not for labels, which it has of single objects only; depth and labels from elsewhere."""
    data = [f"voc:{shared_data}/VOCdevkit?split=val", f"nyuv2:{shared_data}/indoor_rgbd?split=test",
            f"folder:{shared_data}/intel_scenes/test"]  # fmt: skip
    train = [f"voc:{shared_data}/VOCdevkit?split=train", f"nyuv2:{shared_data}/indoor_rgbd?split=train",
             f"folder:{shared_data}/intel_scenes/train"]  # fmt: skip
    found = assign(read_plan("paper"), data, train)
    assert {role: [pair.test for pair in pairs] for role, pairs in found.items()} == {
        "pictures": data[:1], "segmentation": data[:1], "depth": data[1:2], "classification": data[2:],
    }  # fmt: skip


def test_sections_share_their_work(plan: Plan) -> None:
    jobs = jobs_of(plan, assign(plan, [DATA], [TRAIN]), None, None)
    assert [job.sections for job in jobs] == [("pib", "similarity", "look"), ("heads", "gain")]
    assert jobs[0].what == ("pib", "similarity", "pca", "explorer")
    assert (jobs[1].layers, jobs[1].tokens) == ("all", "patch,cls+patch")


def test_other_options_are_another_job_or_refused(tmp_path: Path) -> None:
    path = write_plan(tmp_path)
    fewer = read_plan(path, ["similarity.images=4"])
    assert [job.sections for job in jobs_of(fewer, assign(fewer, [DATA], [TRAIN]), None, None)][:2] == [
        ("pib", "look"), ("similarity",),
    ]  # fmt: skip
    twice = read_plan(path, ["similarity.images=4", "similarity.analyses=[similarity, pib]"])
    with pytest.raises(InputError, match="pib and similarity ask for pib on scenes in two ways"):
        jobs_of(twice, assign(twice, [DATA], [TRAIN]), None, None)
    all_of_them = read_plan(path, ["similarity.images=400"])
    assert len(jobs_of(all_of_them, assign(all_of_them, [DATA], [TRAIN]), None, None)) == 2


def test_fewer_pictures_are_those_of_measure(shared_data: Path) -> None:
    text = f"v=voc:{shared_data}/VOCdevkit?split=val"
    few = limited(Pair("v", text, text), 8)
    assert few.test == few.train == f"{text}&n=8"
    source, whole = open_data(few.test), open_data(text)
    assert [source.name(index) for index in range(8)] == [whole.name(place * len(whole) // 8) for place in range(8)]
    assert limited(Pair("v", text), 10_000).test == text
