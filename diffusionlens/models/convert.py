"""`convert`: a trained model with another attention, in place."""

from dataclasses import replace

from diffusionlens.models.backbone import Backbone
from diffusionlens.models.variant import AttentionName, set_attention


def convert(backbone: Backbone, attention: AttentionName) -> Backbone:
    """Exchanges the attention of a loaded model in all blocks, in place: "what would entmax do to my DINOv2?".

    The weights stay as they are; `diffusionlens.calibrate` then fits a temperature to what the model was trained with.

    Raises:
        InputError: no such attention, or the model's attention can't be exchanged.
    """
    before = backbone.origin.attention
    set_attention(backbone.model, attention)
    if attention != before:
        notes = tuple(note for note in backbone.origin.notes if not note.startswith("trained with"))
        earlier = next((note.split()[2] for note in backbone.origin.notes if note.startswith("trained with")), before)
        if attention != earlier and not backbone.origin.untrained:
            notes = (*notes, f"trained with {earlier} attention, runs with {attention}")
        backbone.origin = replace(backbone.origin, attention=attention, notes=notes)
    return backbone
