"""`build`: a timm ViT with the attention, the registers and the specialisation that an experiment asks for."""

from typing import Any, get_args

from torch import nn

from diffusionlens.errors import InputError
from diffusionlens.models.variant import AttentionName, Specialization, Variant

_REGISTER_OPTIONS = ("reg_tokens", "num_reg_tokens")  # of timm's VisionTransformer, and of its Eva


def build(
    name: str,
    attention: AttentionName = "softmax",
    registers: int | None = None,
    specialize: Specialization = "none",
    **timm_options: Any,
) -> nn.Module:
    """Any timm ViT, untrained, as a variant; without a classifier unless `num_classes` is given.

    Args:
        name: timm's name of the model.
        attention: "softmax", "entmax15" or "sparsemax", in every block.
        registers: number of register tokens between CLS and patches; None for what the name has. Registers have no
            position of their own; timm then gives none to CLS either, which has a learned vector anyway.
        specialize: "cls_patch" for separate weights of CLS and patches (see `models.specialization`).
        timm_options: of timm.create_model, such as img_size, patch_size, dynamic_img_size, drop_path_rate.

    Raises:
        InputError: timm does not know the model, or it can't have the variant.
    """
    for value, known, what in (
        (attention, get_args(AttentionName), "attention"),
        (specialize, get_args(Specialization), "specialize"),
    ):
        if value not in known:
            raise InputError(f"{what}='{value}' does not exist; wanted one of {', '.join(known)}")
    if registers is None:
        return Variant(timm=name, options=timm_options, attention=attention, specialize=specialize).build()
    if registers < 0:
        raise InputError(f"registers={registers}; wanted 0 or more")
    refused = ""
    for option in _REGISTER_OPTIONS:
        options = {**timm_options, option: registers}
        if option == "reg_tokens":
            options.setdefault("no_embed_class", registers > 0)
        try:
            return Variant(timm=name, options=options, attention=attention, specialize=specialize).build()
        except InputError as error:
            if option not in str(error) and "no_embed_class" not in str(error):
                raise
            refused = str(error)
    if registers == 0:  # the model has no such option, and so no registers
        return Variant(timm=name, options=timm_options, attention=attention, specialize=specialize).build()
    raise InputError(f"'{name}' can't have registers ({refused}); choose a plain ViT (vit_*, deit*)")
