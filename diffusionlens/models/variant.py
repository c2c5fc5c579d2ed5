"""What a model is built from, in words that a weights file can keep: an architecture and the variants upon it."""

import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Literal, get_args

import timm
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from diffusionlens.attention.layers import alpha_of, attention_modules, set_alpha
from diffusionlens.errors import InputError, in_short, some
from diffusionlens.models.architecture import Architecture
from diffusionlens.models.architecture import build as build_plain
from diffusionlens.models.specialization import specialize_cls_patch

AttentionName = Literal["softmax", "entmax15", "sparsemax"]
Specialization = Literal["none", "cls_patch"]

ALPHA: dict[AttentionName, float] = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}


# Options of timm.create_model that load weights from somewhere or change the process, and describe no network.
_NO_ARCHITECTURE = (
    "cache_dir",
    "checkpoint_path",
    "exportable",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "scriptable",
)
_LARGEST = 2**20  # of a number that describes a ViT; beyond it memory and time are gone before anybody can say so
_DEEPEST = 1000  # blocks; each is made, one by one


class Variant(BaseModel):
    """`architecture` of a plain ViT, or the name of a timm model with `options` of timm.create_model; and upon it the
    attention and the specialisation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    architecture: Architecture | None = None
    timm: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    attention: AttentionName = "softmax"
    specialize: Specialization = "none"

    @model_validator(mode="after")
    def _one_base(self) -> "Variant":
        if (self.architecture is None) == (self.timm is None):
            raise ValueError("wanted either an architecture or the name of a timm model")
        return self

    def describe(self) -> str:
        base = self.timm if self.architecture is None else self.architecture.describe()
        extras = [] if self.attention == "softmax" else [f"{self.attention} attention"]
        extras += [] if self.specialize == "none" else ["CLS and patches specialised"]
        return ", ".join([str(base), *extras])

    def build(self) -> nn.Module:
        """The model, its weights random; it remembers this variant.

        Raises:
            InputError: timm does not know the model or refuses an option, or the model can't have the variant.
        """
        model = build_plain(self.architecture) if self.architecture is not None else self._from_timm()
        if self.specialize == "cls_patch":
            specialize_cls_patch(model)
        if self.attention != "softmax":
            _exchange(model, self.attention)
        remember(model, self)
        return model

    def _from_timm(self) -> nn.Module:
        name = str(self.timm)
        for option, value in self.options.items():
            if option in _NO_ARCHITECTURE:
                raise InputError(f"the option '{option}' of '{name}' says nothing of its architecture; leave it out")
            if any(isinstance(number, int | float) and abs(number) > _LARGEST for number in _flat(value)):
                raise InputError(
                    f"the option {option}={value} of '{name}' is beyond any ViT; wanted {_LARGEST} at most"
                )
        if isinstance(depth := self.options.get("depth"), int | float) and depth > _DEEPEST:
            raise InputError(f"the option depth={depth} of '{name}' is beyond any ViT; wanted {_DEEPEST} at most")
        refuse_unknown(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                options = {"num_classes": 0, **self.options}
                return timm.create_model(name, pretrained=False, **options)
        except Exception as error:  # timm raises of every kind for options that do not fit
            raise InputError(f"timm could not make '{name}' ({in_short(error)})") from None


def refuse_unknown(name: str, prefix: str = "") -> None:
    """Refuses a name that timm does not have, or one whose weights (behind the dot) it does not have, with the nearest one and
    `prefix` before it.

    Raises:
        InputError: as said.
    """
    base, _, tag = name.partition(".")
    if timm.is_model(base):
        tags = [one.partition(".")[2] for one in timm.list_pretrained(f"{base}.*")] if tag else []
        if tag and tag not in tags:
            near = get_close_matches(tag, tags, n=1)
            hint = f"; did you mean '{prefix}{base}.{near[0]}'?" if near else f"; it has {some(tags) or 'none'}"
            raise InputError(f"timm has no weights '{tag}' of '{base}'{hint}")
        return
    known = timm.list_models()
    begin = sorted((one for one in known if base and one.startswith(base)), key=len)
    near = begin or get_close_matches(base, known, n=1) or [one for one in known if base and base in one]
    hint = f"did you mean '{prefix}{near[0]}'?" if near else "timm.list_models('*vit*') lists its ViTs"
    raise InputError(f"timm has no model '{name}'; {hint}")


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def remember(model: nn.Module, variant: Variant) -> None:
    model.variant = variant  # type: ignore[assignment]


def variant_of(model: nn.Module) -> Variant:
    """The variant that a model was built from, with the attention that it has now.

    Raises:
        InputError: the model was made elsewhere.
    """
    variant = getattr(model, "variant", None)
    if not isinstance(variant, Variant):
        raise InputError(
            f"this {type(model).__name__} was not made by diffusionlens, so that what it is built from is not known; "
            f"make it with diffusionlens.models.build or load_model"
        )
    return variant.model_copy(update={"attention": attention_of(model)})


def attention_of(model: nn.Module) -> AttentionName:
    """The attention in all blocks of a model.

    Raises:
        InputError: its blocks have different ones.
    """
    alphas = {alpha_of(module) for module in attention_modules(getattr(model, "blocks", nn.ModuleList()))}
    if len(alphas) > 1:
        raise InputError(f"the blocks of this {type(model).__name__} have different attentions; wanted one for all")
    return next((name for name, alpha in ALPHA.items() if {alpha} == alphas), "softmax")


def set_attention(model: nn.Module, attention: AttentionName) -> nn.Module:
    """Exchanges the attention in all blocks, in place; parameters stay.

    Raises:
        InputError: no such attention, or the model's attention can't be exchanged.
    """
    if attention not in get_args(AttentionName):
        raise InputError(f"attention '{attention}' does not exist; wanted one of {', '.join(get_args(AttentionName))}")
    _exchange(model, attention)
    if isinstance(getattr(model, "variant", None), Variant):
        remember(model, variant_of(model))
    return model


def _exchange(model: nn.Module, attention: AttentionName) -> None:
    blocks: Any = getattr(model, "blocks", None)
    modules = list(attention_modules(blocks)) if isinstance(blocks, nn.Module) else []
    if not modules or len(modules) < len(blocks):
        raise InputError(
            f"attention in the blocks of {type(model).__name__} does not go through torch's scaled_dot_product_attention, so "
            f"that it can't be exchanged; choose a plain ViT (vit_*, deit*, beit*, eva02_*, *dinov2*, *dinov3*)"
        )
    for module in modules:
        set_alpha(module, ALPHA[attention])
