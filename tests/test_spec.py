"""MODEL and DATA strings."""

import pytest

from diffusionlens.errors import InputError
from diffusionlens.spec import check_query, is_whole, parse_size, parse_spec


@pytest.mark.parametrize(
    ("text", "label", "kind", "rest", "query"),
    [
        ("timm:vit_small_patch16_224.dino", None, "timm", "vit_small_patch16_224.dino", {}),
        ("a=timm:x?pretrained=false", "a", "timm", "x", {"pretrained": "false"}),
        ("voc:root?year=2012&split=val", None, "voc", "root", {"year": "2012", "split": "val"}),
        ("my-vit.v2=/data/w=1.pth", "my-vit.v2", "", "/data/w=1.pth", {}),
        ("/data/w=1.pth", None, "", "/data/w=1.pth", {}),
        ("C:\\weights\\a.pth", None, "", "C:\\weights\\a.pth", {}),
        ("tiny-imagenet:root", None, "tiny-imagenet", "root", {}),
        ("scenes:?n=5", None, "scenes", "", {"n": "5"}),
    ],
)
def test_forms(text: str, label: str | None, kind: str, rest: str, query: dict[str, str]) -> None:
    spec = parse_spec(text)
    assert (spec.label, spec.kind, spec.rest, spec.query) == (label, kind, rest, query)


@pytest.mark.parametrize("text", ["", "  ", "voc:root?split", "voc:root?a=1&a=2"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_spec(text)


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'split'"):
        check_query(parse_spec("voc:root?spilt=val"), {"split": "", "year": ""})


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("224x320", (224, 320))])
def test_sizes(text: str, size: tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "224x", "-3", "1x2x3", "0", "9999", "2.5"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(InputError, match="not a picture size"):
        parse_size(text)


def test_whole_numbers_are_plain_digits() -> None:
    """`str.isdigit` says yes to "²", of which `int` makes a traceback."""
    assert all(is_whole(text) for text in ("0", "7", "007", "123456789"))
    assert not any(is_whole(text) for text in ("", "²", "٣", "-1", "+1", "1.0", "1_0", " 1", "x", "1" * 10))
    with pytest.raises(InputError, match="not a picture size"):
        parse_size("²x224")
