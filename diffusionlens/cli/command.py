"""A command whose options are given once each, unless they take several values."""

from typing import Any

from typer.core import TyperCommand

from diffusionlens.errors import InputError


class Command(TyperCommand):
    """Refuses what would be lost: of an option given twice, the first value would be dropped without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for option in given:
            times = given.count(option)
            if times > 1 and not (getattr(option, "multiple", True) or getattr(option, "is_flag", True)):
                raise InputError(f"{option.opts[0]} is given {times} times; `{ctx.command_path}` takes one")
        return super().parse_args(ctx, args)
