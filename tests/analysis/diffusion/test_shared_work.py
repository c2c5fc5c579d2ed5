"""Two processes that share the pictures come to the table of one: states merge, in any order."""

import numpy as np
import torch

from diffusionlens.analysis.diagnostic import Context
from diffusionlens.analysis.diffusion.diagnostic import Diffusion
from diffusionlens.analysis.diffusion.options import DiffusionOptions
from diffusionlens.analysis.measure import feed
from diffusionlens.data.sample import Sample
from diffusionlens.data.transforms.fit import FitTransform
from tests.analysis.diffusion.encoders import ColouredBoxes, planted_encoder
from tests.analysis.planted import collate, joined


def test_states_of_two_processes_merge_to_the_table_of_one() -> None:
    backbone, source = planted_encoder(0.2), ColouredBoxes(32)
    transform = FitTransform((64, 64), (0.5,) * 3, (0.5,) * 3)  # type: ignore[arg-type]

    def picture(index: int) -> Sample:
        return transform(source.open(index), index)

    context = Context(backbone, (0, 1), tuple(range(32)), source.provides, 0, (0, 16), picture)
    tables = []
    for parts in ([range(32)], [range(1, 32, 2), range(0, 32, 2)]):
        measured = []
        for part in parts:
            diagnostic = Diffusion(context, DiffusionOptions(provenance_pictures=3, steps=4))
            for start in range(0, len(part), 4):
                batch = collate([picture(index) for index in part[start : start + 4]])
                feed([diagnostic], backbone, batch, {0, 1}, torch.device("cpu"))
            measured.append(diagnostic)
        tables.append(joined(measured).table())
        assert int(measured[0].extra_forwards) == 3 * 32 + 3 * 2 * 6
    names = [[(row.metric, row.layer, row.token) for row in table] for table in tables]
    assert names[0] == names[1]
    assert {"leakage", "spread", "provenance_self"} <= {name for name, _, _ in names[0]}
    for key in ("value", "low", "high", "n"):
        values = [[getattr(row, key) for row in table] for table in tables]
        np.testing.assert_allclose(*[np.array(v, float) for v in values], atol=1e-5)
