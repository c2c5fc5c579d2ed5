"""`diffusionlens bench`: what things cost on this machine. The commands import what they time: `--help` need not wait for it."""

import json
from typing import Annotated

import typer

from diffusionlens.cli.command import Command
from diffusionlens.cli.parts import Device, Json, at_work, say, whole
from diffusionlens.options import BATCH_SIZE, IMAGES, ROUNDS, STEPS, THREADS

bench = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Time the program on this machine; ratios, alternated in one run."
)


@bench.command("measure", cls=Command)
def measure_bench(
    model: Annotated[str, typer.Option(help="MODEL")] = "timm:vit_small_patch16_224?pretrained=false",
    data: Annotated[str, typer.Option(help="DATA")] = "scenes:?n=300&size=224",
    images: Annotated[int, whole(IMAGES, "pictures per round")] = 64,
    rounds: Annotated[int, whole(ROUNDS, "rounds; bare forward and measure alternate")] = 5,
    batch_size: Annotated[int, whole(BATCH_SIZE, "pictures per forward")] = 8,
    threads: Annotated[int | None, whole(THREADS, "CPU threads; default torch's own choice")] = None,
    parts: Annotated[bool, typer.Option(help="also each analysis alone")] = True,
    memory: Annotated[bool, typer.Option(help="also the peak memory at 100 and at 300 pictures")] = True,
    as_json: Json = False,
) -> None:
    """Time `measure` against the bare forward pass. All analyses over all layers, on the same decoded pictures."""
    from diffusionlens.bench.measure import bench_measure

    found = bench_measure(model, data, images, rounds, batch_size, threads, parts=parts, memory=memory)
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])


@bench.command("attention", cls=Command)
def attention_bench(
    device: Device = "auto",
    shapes: Annotated[
        str, typer.Option(help="BxHxN (pictures, heads, tokens), separated by commas; 'none' for none")
    ] = ("32x6x197,256x6x37,4x6x1025,1x6x4097"),
    dtypes: Annotated[str, typer.Option(help="some of fp32,bf16,fp16")] = "fp32",
    stds: Annotated[str, typer.Option(help="standard deviations of the logits")] = "0.15,1,3",
    rounds: Annotated[int, whole(ROUNDS, "rounds; softmax, the package and ours alternate")] = 7,
    clock: Annotated[str, typer.Option(help="wall, or cpu (processor time: for a machine that is not idle)")] = "wall",
    threads: Annotated[int | None, whole(THREADS, "CPU threads; default torch's own choice")] = None,
    package: Annotated[bool, typer.Option(help="also the entmax package (slow)")] = True,
    steps: Annotated[bool, typer.Option(help="also a training step of ViT-S/16 at 224 and 96 pixels")] = True,
    as_json: Json = False,
) -> None:
    """Time entmax attention against softmax attention."""
    from diffusionlens.bench import attention

    with at_work() as progress:
        found = attention.bench_attention(
            device,
            attention.parse_shapes(shapes),
            dtypes.split(","),
            attention.parse_numbers(stds, "--stds"),
            rounds,
            attention.parse_clock(clock),
            threads,
            progress,
            package=package,
            steps=attention.STEPS if steps else (),
        )
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])


@bench.command("train", cls=Command)
def train_bench(
    recipe: Annotated[
        str, typer.Option(help="a YAML file, or the name of a shipped recipe; its attention is exchanged")
    ] = "tiny_scenes_softmax",
    data: Annotated[str, typer.Option(help="[label=]KIND:ROOT[?key=value]")] = "scenes:?n=512&size=64",
    setting: Annotated[list[str] | None, typer.Option("--set", help="key of the recipe, as batch_size=64")] = None,
    rounds: Annotated[int, whole(ROUNDS, "rounds; softmax and entmax alternate")] = 7,
    steps: Annotated[int, whole(STEPS, "steps of each in a round")] = 5,
    threads: Annotated[int | None, whole(THREADS, "CPU threads; default torch's own choice")] = None,
    as_json: Json = False,
) -> None:
    """Time whole training steps with softmax and with entmax. Pictures a second, the ratio, and the share of time that
    training waits for pictures."""
    from diffusionlens.bench.train import bench_train

    with at_work() as progress:
        found = bench_train(recipe, data, setting or [], rounds, steps, threads, progress)
    say([json.dumps(found.as_dict(), indent=2) if as_json else found.as_text()])
