"""What an analysis needs and a model has not is said; a checkout's own analysis is one like any other."""

import pytest
import torch

import diffusionlens
from diffusionlens.analysis import registry
from diffusionlens.analysis.diagnostic import Column, Diagnostic, LeftOut
from tests.analysis.planted import planted_context, planted_trace


class OfCls(Diagnostic):
    name = "of_cls"
    needs = frozenset({"cls"})

    @property
    def columns(self) -> list[Column]:
        return [Column("cls_length", layer, token="cls") for layer in self.context.layers]

    def update(self, trace, batch) -> None:  # type: ignore[no-untyped-def]
        lengths = [trace.tokens(layer, norm="raw").cls.norm(dim=-1) for layer in self.context.layers]
        self.record(batch, torch.stack(lengths, 1))


def test_a_model_without_cls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.DIAGNOSTICS, "of_cls", OfCls)
    trace = planted_trace({0: torch.ones(2, 6, 8)}, (2, 3), has_cls=False)
    made = registry.make("of_cls", planted_context(trace, 2), OfCls.options_type())
    assert made == LeftOut("of_cls", "the model has no CLS token")
    trace = planted_trace({0: torch.ones(2, 7, 8)}, (2, 3))
    assert isinstance(registry.make("of_cls", planted_context(trace, 2), OfCls.options_type()), OfCls)


def test_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.DIAGNOSTICS, "of_cls", OfCls)
    found = diffusionlens.measure(
        "timm:vit_tiny_patch16_224?pretrained=false&img_size=48", "scenes:?n=2&size=48", analyses="of_cls", layers="0,3"
    )
    assert found is not None
    assert list(found.measurement.results["layer"]) == [0, 3]
    assert registry.added_analyses() == ["of_cls"]
