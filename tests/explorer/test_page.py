"""The explorer in a real browser: it shows what Python computes, asks nothing of the network, and obeys keys and links."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from diffusionlens import load_model, open_data
from diffusionlens.analysis.diagnostic import Context
from diffusionlens.analysis.explorer import Explorer, ExplorerOptions
from diffusionlens.analysis.measure import feed
from diffusionlens.capture import AttentionBlock, capture
from diffusionlens.data.batches import load_batches
from diffusionlens.data.transforms.fit import FitTransform
from diffusionlens.explorer.packed import ExploredModel
from diffusionlens.explorer.section import explorer_section
from diffusionlens.pages.template import Page, render

EVIL = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>&'"
LAYERS = (0, 6, 12)
PICTURES = 2
SPECS = {
    "soft": ("timm:vit_tiny_patch16_224?pretrained=false", (96, 128)),  # 6 x 8 patches and CLS
    EVIL: ("timm:vit_tiny_patch16_224?pretrained=false&attention=entmax15", (64, 64)),  # 4 x 4
    "registers": ("timm:vit_medium_patch16_reg4_gap_256?pretrained=false", (64, 64)),  # no CLS
}


class Truth:
    """One model's cosines and weights on every picture in float64, from a pass of its own, and what the explorer packed."""

    def __init__(self, label: str) -> None:
        spec, size = SPECS[label]
        backbone = load_model(spec)
        backbone.label = label
        backbone.set_size(size)
        self.grid, self.cls, self.prefix = backbone.grid, int(backbone.has_cls), backbone.prefix
        self.weights: dict[tuple[int, int], np.ndarray] = {}
        self.cosines: dict[tuple[int, int], np.ndarray] = {}
        source = open_data(f"scenes:?n={PICTURES}&size=64")
        prepared = backbone.preprocessing
        transform = FitTransform(size, prepared.mean, prepared.std, "crop", prepared.interpolation)
        [(batch, _)] = load_batches(source, transform, list(range(PICTURES)), PICTURES, 0)
        assert batch is not None

        def observe(block: AttentionBlock) -> None:
            for place, weights in enumerate(block.weights.double().mean(1).numpy()):
                self.weights[block.pictures.start + place, block.layer] = weights

        trace = capture(backbone, batch.images, [observe])
        for layer in LAYERS:
            tokens = trace.tokens(layer)
            for place in range(PICTURES):
                points = tokens.flat_patches[place].double().numpy()
                if tokens.cls is not None:
                    points = np.concatenate([tokens.cls[place].double().numpy()[None], points])
                unit = points / np.linalg.norm(points, axis=1, keepdims=True)
                self.cosines[place, layer] = unit @ unit.T
        context = Context(backbone, LAYERS, tuple(range(PICTURES)), source.provides, seed=0)
        explorer = Explorer(context, ExplorerOptions(pictures=PICTURES))
        feed([explorer], backbone, batch, set(LAYERS), batch.images.device)
        self.model: ExploredModel = explorer.shown()["explored"]

    def values(self, picture: int, layer: int, kind: str, patch: tuple[int, int]) -> np.ndarray:
        """What the map shows, [h,w]."""
        place = patch[0] * self.grid[1] + patch[1]
        if kind.endswith("attention"):
            query = 0 if kind == "cls-attention" else self.prefix + place
            row = self.weights[picture, layer][query, self.prefix :]
        else:
            row = self.cosines[picture, layer][0 if kind == "cls" else self.cls + place, self.cls :]
        return row.reshape(self.grid)


@pytest.fixture(scope="module")
def truths() -> list[Truth]:
    return [Truth(label) for label in SPECS]


@pytest.fixture(scope="module")
def address(truths: list[Truth], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with the explorer and nothing else; the first picture has a hostile name."""
    models = []
    for truth in truths:
        pictures = dict(truth.model.pictures)
        pictures[0] = replace(pictures[0], name=EVIL)
        models.append(replace(truth.model, pictures=pictures))
    page = render(Page("Test", "A page.", [], [], [], [], [], [], explorer=explorer_section(models)))
    path: Path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


class Open:
    """A page that is open, what it said and what it asked for."""

    def __init__(self, context: Any, address: str) -> None:
        self.page = context.new_page()
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#explorer[data-drawn]", state="attached")

    def settled(self, action: Any) -> None:
        """Does something and waits until the maps are drawn anew."""
        before = self.page.get_attribute("#explorer", "data-drawn")
        action()
        self.until(lambda: self.page.get_attribute("#explorer", "data-drawn") != before)

    def until(self, true: Callable[[], bool]) -> None:
        """Waits for it; playwright's own waiting in the page needs `eval`, which the page's policy forbids."""
        for _ in range(500):
            if true():
                return
            self.page.wait_for_timeout(20)
        raise AssertionError("it did not come to pass in ten seconds")

    def pixels(self, model: int) -> np.ndarray:
        """Colours [h,w,3] of a model's canvas."""
        script = """model => { const c = document.querySelectorAll('[data-model] canvas')[model];
          const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});
          copy.drawImage(c, 0, 0);
          return [c.height, c.width, ...copy.getImageData(0, 0, c.width, c.height).data]; }"""
        height, width, *data = self.page.evaluate(script, model)
        return np.array(data, float).reshape(height, width, 4)[..., :3]

    def choose(self, **what: object) -> None:
        query = "&".join(f"{name}={value}" for name, value in what.items())
        self.settled(lambda: self.page.evaluate("query => { location.hash = 'explorer?' + query }", query))

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.text_content())


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def opened(context: Any, address: str) -> Iterator[Open]:
    opened = Open(context, address)
    yield opened
    assert opened.said == []
    assert {url for url in opened.requests if not url.startswith("data:")} == {address.partition("#")[0]}
    opened.page.close()


def test_unpacked_cosines_are_pythons(opened: Open, truths: list[Truth]) -> None:
    """Every entry of every map, unpacked by the page's own code, against float64."""
    script = """async ([model, picture, skip, length, points, levels]) => {
      const bytes = explorerMaps.bytesOf(document.getElementById(`explorer-maps-${model}-${picture}`).textContent);
      const cosine = await explorerMaps.cosines(bytes.subarray(skip, skip + length), points, levels);
      return Array.from({length: points * points}, (_, at) => cosine(Math.floor(at / points), at % points)); }"""
    for number, truth in enumerate(truths):
        points = truth.cls + truth.grid[0] * truth.grid[1]
        for place, picture in truth.model.pictures.items():
            skip = 0
            for layer in LAYERS:
                packed = picture.layers[layer]
                asked = [number, place, skip, len(packed.cosines.data), points, packed.cosines.levels]
                found = np.array(opened.page.evaluate(script, asked)).reshape(points, points)
                assert np.abs(found - truth.cosines[place, layer]).max() < min(packed.cosines.error + 1e-4, 0.02)
                skip += len(packed.cosines.data) + (0 if packed.attention is None else len(packed.attention.data))


@pytest.mark.parametrize("kind", ["cosine", "attention", "cls", "cls-attention"])
def test_maps_are_drawn_as_python_says(opened: Open, truths: list[Truth], kind: str) -> None:
    """Colours of the canvas, on one scale for all models, against matplotlib's inferno of the true values."""
    for picture, layer, at in ((0, 12, (0.99, 0.01)), (1, 6, (0.3, 0.8))):
        opened.choose(picture=picture + 1, layer=layer, at=f"{at[0]},{at[1]}", map=kind)
        shown = [truth for truth in truths if truth.cls or not kind.startswith("cls")]
        patches = [tuple(int(share * n) for share, n in zip(at, truth.grid, strict=True)) for truth in shown]
        maps = [
            truth.values(picture, layer, kind, patch)
            for truth, patch in zip(shown, patches, strict=True)  # type: ignore[arg-type]
        ]
        rest = [values.copy() for values in maps]
        if kind == "cosine":
            for values, patch in zip(rest, patches, strict=True):
                values[patch] = np.nan  # the patch itself does not stretch the scale
        low = 0.0 if kind.endswith("attention") else min(np.nanmin(values) for values in rest)
        high = max(np.nanmax(values) for values in rest)
        for truth, values in zip(shown, maps, strict=True):
            error = 0.005 if kind in ("cosine", "cls") else max(one.error for one in truth.model.attention_maps())
            colours = mpl.colormaps["inferno"](np.clip((values - low) / (high - low), 0, 1))[..., :3] * 255
            found = opened.pixels(truths.index(truth))
            # The steepest channel of inferno rises by 3.5 x 255 over the scale; its 13 anchors are good to some 6 of 255.
            slack = 6 + 3.5 * 255 * 2 * error / (high - low)
            assert np.abs(found - colours).max() < slack, (kind, layer, truth.model.label)
            assert slack < 60


def test_a_model_says_what_it_has_not(opened: Open) -> None:
    opened.choose(layer=12, map="cls")
    assert "no CLS" in opened.text("[data-model='2'] .explorer-read")
    opened.choose(layer=0, map="attention")
    assert "Layer 0 has no attention" in opened.text("[data-model='0'] .explorer-read")
    assert not opened.pixels(0).any()


def test_words_are_the_numbers(opened: Open, truths: list[Truth]) -> None:
    opened.choose(picture=1, layer=12, at="0.4,0.6", map="cosine")
    cosines = truths[0].cosines[0, 12]
    place = 1 + 2 * 8 + 4
    others = np.delete(cosines[place, 1:], place - 1)
    text = opened.text("[data-model='0'] .explorer-read").replace("\u2212", "-")
    said = [float(number) for number in re.findall(r"-?\d\.\d\d", text)]
    assert said == pytest.approx([cosines[place, 0], others.max()], abs=0.011)


def test_pointing_and_holding(opened: Open) -> None:
    """The mouse moves the patch by its place in the picture, in every grid; a click holds it; the same click lets go."""
    stage = opened.page.locator("[data-model='1'] .explorer-stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()

    def spot(row: int, column: int) -> tuple[float, float]:
        return box["x"] + (column + 0.5) / 4 * box["width"], box["y"] + (row + 0.5) / 4 * box["height"]

    opened.settled(lambda: opened.page.mouse.move(*spot(1, 3)))
    assert "row 1, column 3" in str(opened.page.get_attribute("[data-model='1'] canvas", "aria-label"))
    assert "row 2, column 7" in str(opened.page.get_attribute("[data-model='0'] canvas", "aria-label"))  # 0.375, 0.875
    opened.settled(lambda: opened.page.mouse.click(*spot(0, 0)))
    assert "held" in opened.text("#explorer-place")
    opened.page.mouse.move(*spot(3, 3))
    opened.until(lambda: "at the pointer" in opened.text("[data-model='1'] .explorer-of"))
    assert "row 0, column 0" in str(opened.page.get_attribute("[data-model='1'] canvas", "aria-label"))
    opened.settled(lambda: opened.page.mouse.click(*spot(0, 0)))
    assert "held" not in opened.text("#explorer-place")


def test_everything_by_keyboard_and_spoken(opened: Open) -> None:
    page = opened.page
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.tagName")
        )
    for name in (
        "explorer-picture",
        "explorer-map",
        "explorer-layer",
        "explorer-common",
        "explorer-through",
        "explorer-copy",
    ):
        assert name in reached, name
    page.locator("#explorer-picture.explorer-stage").focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    opened.settled(lambda: page.keyboard.press("Home"))
    for key in ("ArrowUp", "ArrowRight", "PageDown"):
        opened.settled(lambda key=key: page.keyboard.press(key))
    assert opened.text("#explorer-place") == "row 2, column 1, held"
    assert page.get_attribute("#explorer-layer", "aria-valuetext") == "layer 6 of 12"
    opened.until(lambda: "row 2, column 1" in opened.text("#explorer-status"))
    assert "Cosine with the patch" in opened.text("#explorer-status")
    opened.settled(lambda: page.keyboard.press("Escape"))
    assert opened.text("#explorer-place") == "row 2, column 1"


def test_a_link_restores_the_view(opened: Open, context: Any) -> None:
    opened.choose(picture=2, layer=6, at="0.7,0.2", map="attention")
    opened.page.click("#explorer-copy")
    opened.until(lambda: "copied" in opened.text("#explorer-status"))
    link = opened.page.evaluate("navigator.clipboard.readText()")
    assert link == opened.page.url
    again = Open(context, link)
    assert again.page.is_checked("input[name=explorer-picture][value='1']")
    assert again.page.is_checked("input[name=explorer-map][value=attention]")
    assert again.page.get_attribute("#explorer-layer", "aria-valuetext") == "layer 6 of 12"
    assert again.text("#explorer-place") == "row 4, column 1, held"
    for model in range(3):
        np.testing.assert_array_equal(again.pixels(model), opened.pixels(model))
    assert again.said == []
    again.page.close()


@pytest.mark.parametrize(
    "fragment", ["explorer?picture=99&layer=7&at=2,x&map=none", "explorer?at=0.5&picture=", "explorer?%%%", "explorer"]
)
def test_a_broken_link_shows_the_page(context: Any, address: str, fragment: str) -> None:
    broken = Open(context, f"{address}#{fragment}")
    assert broken.said == []
    assert broken.page.is_checked("input[name=explorer-picture][value='0']")
    assert broken.pixels(0).any()
    broken.page.close()


def test_names_stay_inert(opened: Open) -> None:
    assert opened.page.title() == "Test"
    assert opened.text("[data-model='1'] strong") == EVIL
    assert opened.text("#explorer-name") == EVIL
    assert opened.page.locator("img[src=x], [onerror]").count() == 0


def test_the_page_may_not_reach_out(context: Any, address: str) -> None:
    """Not even when asked to: its policy forbids requests and foreign scripts."""
    opened = Open(context, address)
    script = "fetch('https://example.org/').then(() => 'reached', () => 'refused')"
    assert opened.page.evaluate(script) == "refused"
    opened.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.owned = 1'}))"
    )
    assert opened.page.evaluate("typeof window.owned") == "undefined"
    assert any("Content Security Policy" in text for text in opened.said)
    opened.page.close()


def test_without_scripts_the_page_says_so(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.is_visible("noscript p")
    assert not page.is_visible(".explorer-controls")
    context.close()


def test_on_a_phone_in_the_dark_and_on_paper(browser: Any, address: str) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740},
        has_touch=True,
        is_mobile=True,
        color_scheme="dark",
        reduced_motion="reduce",
    )
    opened = Open(context, address)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    stage = page.locator("[data-model='0'] .explorer-stage")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    assert box["width"] >= 130
    opened.settled(lambda: page.touchscreen.tap(box["x"] + box["width"] * 0.95, box["y"] + box["height"] * 0.05))
    assert opened.text("#explorer-place") == "row 0, column 7, held"
    page.emulate_media(media="print")
    assert not page.is_visible(".explorer-controls")
    assert page.is_visible("[data-model='0'] canvas")
    assert opened.said == []
    context.close()
