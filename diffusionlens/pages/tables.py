"""The compact tables of a result directory: models by metrics at the last layer, as CSV, Markdown and LaTeX."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from diffusionlens.pages.numbers import typeset, with_interval

_TOKENS = ("patch", "cls", "cls+patch", "shuffled_cls+patch", "mean+patch")

# (metric, token, heading) of each analysis; token None takes the only one there is.
KEY_METRICS: dict[str, list[tuple[str, str | None, str]]] = {
    "pib": [
        ("pib", None, "PiB (%)"),
        ("pib_chance", None, "chance (%)"),
        ("pib_center", None, "centre patch (%)"),
        ("pib_lift", None, "lift (points)"),
        ("pib_top10", None, "best ten (%)"),
    ],
    "norms": [
        ("norm_mean", "raw", "mean norm"),
        ("norm_max", "raw", "largest norm"),
        ("cls_norm", "raw", "CLS norm"),
        ("outlier_share", "mad", "outliers (MAD)"),
        ("outlier_share", "valley", "outliers (valley)"),
    ],
    "sparsity": [
        ("support", "patch>all", "support"),
        ("effective_support", "patch>all", "effective support"),
        ("entropy_normalized", "patch>all", "normalised entropy"),
        ("cls_weight", "patch>cls", "weight on CLS"),
        ("mean_distance", "patch>patch", "distance (px)"),
    ],
    "similarity": [
        ("cls_patch_cos", None, "CLS-patch cosine"),
        ("patch_patch_cos", None, "patch-patch cosine"),
        ("lds", None, "LDS"),
        ("srss", None, "SRSS"),
        ("effective_rank", None, "effective rank"),
        ("cka_cls_patchmean", None, "CKA CLS-patches"),
    ],
    "diffusion": [
        ("leakage_full", None, "label read (%)"),
        ("leakage_erased", None, "object erased (%)"),
        ("leakage_chance", None, "chance (%)"),
        ("leakage", None, "leakage (points)"),
        ("spread", "all", "spread"),
        ("spread", "ring 1", "spread, ring 1"),
        ("spread", "ring 5+", "spread, ring 5+"),
        ("spread_object", "all", "response to the object"),
        ("spread_picture", "all", "response to a whole exchange"),
        ("provenance_self", "background", "own place"),
        ("provenance_object", "background", "from object"),
    ],
    "discovery": [
        ("corloc_lost", None, "CorLoc LOST (%)"),
        ("corloc_tokencut", None, "CorLoc TokenCut (%)"),
        ("corloc_whole", None, "whole picture (%)"),
        ("lost_whole", None, "LOST takes it whole (%)"),
        ("uncut", None, "uncut (%)"),
        ("jaccard_attention", None, "Jaccard of attention (%)"),
    ],
    "pca": [
        ("explained_variance", "component 1", "component 1"),
        ("explained_variance", "component 2", "component 2"),
        ("explained_variance", "component 3", "component 3"),
    ],
}


KEY_METRICS |= {
    "segmentation": [("miou", token, f"mIoU (%), {token}") for token in _TOKENS],
    "depth": [("rmse", token, f"RMSE (m), {token}") for token in _TOKENS],
    "classification": [
        *(("linear_top1", token, f"linear (%), {token}") for token in _TOKENS),
        *(
            ("linear_top1", f"{pool} blocks={blocks}", f"linear (%), {pool} of {blocks} block{'s' * (blocks > 1)}")
            for blocks in (1, 4)
            for pool in ("cls", "cls+mean")
        ),
        ("logreg_top1", "cls", "logistic (%), cls"),
        *(("knn_top1", f"{token} k=20", f"k-NN 20 (%), {token}") for token in ("patch", "cls")),
    ],
    "complementarity": [("gain", token, f"gain of {token}") for token in _TOKENS if "+" in token],
}


def key_metrics(results: pd.DataFrame) -> dict[str, list[tuple[str, str | None, str]]]:
    """`KEY_METRICS`, and every metric of the analyses in `results` that are not diffusionlens' own."""
    found = dict(KEY_METRICS)
    added = results[~results["analysis"].isin(list(KEY_METRICS)) & results["layer"].notna()]
    kinds = added[["analysis", "metric", "token"]].drop_duplicates()
    for analysis, metric, token in kinds.itertuples(index=False, name=None):
        found.setdefault(analysis, []).append((metric, token, f"{metric} {token}".strip()))
    return found


def last_layer_table(results: pd.DataFrame, analysis: str, models: Sequence[str], *, intervals: bool) -> pd.DataFrame:
    """Models by the key metrics of `analysis` at each model's last measured layer; empty when there are none."""
    lines: dict[str, dict[str, object]] = {}
    for row in last_layer_rows(results, analysis, models).itertuples():
        line = lines.setdefault(str(row.model), {"model": row.model, "layer": int(str(row.layer))})
        line[str(row.heading)] = with_interval(row) if intervals else row.value
    table = pd.DataFrame(list(lines.values()))
    order = ["model", "layer", *(heading for _, _, heading in key_metrics(results)[analysis])]
    return table[[heading for heading in order if heading in table]]


def last_layer_rows(results: pd.DataFrame, analysis: str, models: Sequence[str]) -> pd.DataFrame:
    """The rows of the key metrics at each model's last measured layer, with their `heading`."""
    rows = results[(results["analysis"] == analysis) & results["head"].isin(["", "mean"])]
    found = []
    for model in models:
        own = rows[rows["model"] == model]
        if own.empty:
            continue
        last = own[own["layer"] == own["layer"].max()]
        for metric, token, heading in key_metrics(results)[analysis]:
            chosen = last[last["metric"] == metric]
            if token is not None:  # "valley" also stands for "valley (unimodal)"
                chosen = chosen[chosen["token"].map(lambda name: name.partition(" (")[0]) == token]
            found.append(chosen.head(1).assign(heading=heading))
    return pd.concat(found) if found else rows.assign(heading="")


def by_layer_table(results: pd.DataFrame, analysis: str, model: str) -> pd.DataFrame:
    """Every metric of `analysis` (heads averaged) by layer, with intervals, for one model."""
    rows = results[(results["analysis"] == analysis) & (results["model"] == model) & results["head"].isin(["", "mean"])]
    if rows.empty:
        return pd.DataFrame()
    tokens = rows["token"].str.replace(" (unimodal)", "", regex=False)
    named = rows.assign(
        name=rows["metric"] + tokens.map(lambda token: f" · {token}" if token else ""),
        shown=[with_interval(row) for row in rows.itertuples()],
    )
    wide = named.pivot(index="name", columns="layer", values="shown").loc[list(dict.fromkeys(named["name"]))]
    return wide.fillna("–")


_ESCAPE: Final = "backslashreplace"  # a file name may hold bytes that are no text


def write_tables(results: pd.DataFrame, models: Sequence[str], directory: Path) -> None:
    """Writes one table per analysis in three formats."""
    for analysis in key_metrics(results):
        plain = last_layer_table(results, analysis, models, intervals=False)
        if not plain.empty:
            shown = last_layer_table(results, analysis, models, intervals=True).fillna("–")
            write_formats(plain, shown, directory, analysis)


HIGHER_IS_BETTER: Final = {
    **dict.fromkeys(("pib", "pib_lift", "pib_top10"), True),
    **dict.fromkeys(("miou", "pixel_accuracy", "delta1", "linear_top1", "logreg_top1", "knn_top1"), True),
    **dict.fromkeys(("corloc_lost", "corloc_tokencut", "jaccard_attention"), True),
    **dict.fromkeys(("rmse", "rmse_pooled", "abs_rel"), False),
}
"""Metric -> whether more of it is better, for metrics that are scores; of the others no value is the best."""


@dataclass(frozen=True)
class Setting:
    """How a table is set: (row, column) cells in bold, rows below a rule, and a caption and label for LaTeX."""

    bold: frozenset[tuple[int, int]] = frozenset()
    ruled: frozenset[int] = frozenset()
    caption: str = ""
    label: str = ""


def best_cells(plain: pd.DataFrame, better: Mapping[str, bool], rows: int | None = None) -> frozenset[tuple[int, int]]:
    """The best value of every column of `better` (heading -> higher is better), among the first `rows`; all that tie, and none
    where all do or only one is there."""
    found = set()
    for place, heading in enumerate(plain.columns):
        if heading not in better:
            continue
        values = pd.to_numeric(plain[heading].iloc[:rows], errors="coerce")
        if values.nunique() > 1:
            best = values.max() if better[heading] else values.min()
            found |= {(row, place) for row, value in enumerate(values) if value == best}
    return frozenset(found)


def better_headings(analysis: str) -> dict[str, bool]:
    """Heading -> whether higher is better, for the scores among the key metrics of an analysis."""
    known = [(heading, HIGHER_IS_BETTER.get(metric)) for metric, _, heading in KEY_METRICS.get(analysis, [])]
    return {heading: better for heading, better in known if better is not None}


def write_formats(
    plain: pd.DataFrame, shown: pd.DataFrame, directory: Path, stem: str, setting: Setting | None = None
) -> None:
    """Writes STEM.csv with the numbers of `plain`, STEM.md and STEM.tex with the cells of `shown`."""
    setting = setting or Setting()
    plain.to_csv(directory / f"{stem}.csv", index=False, float_format="%.6g", lineterminator="\n", errors=_ESCAPE)
    (directory / f"{stem}.md").write_text(_markdown(shown, setting), encoding="utf-8", errors=_ESCAPE)
    (directory / f"{stem}.tex").write_text(_latex(shown, setting), encoding="utf-8", errors=_ESCAPE)


_MARKDOWN = re.compile(r"[|<>*`\[\]\\]")


def _markdown_text(cell: object) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", str(cell))


def _markdown(table: pd.DataFrame, setting: Setting) -> str:
    body = [list(map(_markdown_text, line)) for line in table.values.tolist()]
    body = [
        [f"**{cell}**" if (row, place) in setting.bold else cell for place, cell in enumerate(line)]
        for row, line in enumerate(body)
    ]
    lines = [list(map(_markdown_text, table.columns)), ["---"] * len(table.columns), *body]
    caption = f"\n{_markdown_text(setting.caption)}\n" if setting.caption else ""
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + caption


_LATEX = {
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"\textperiodcentered{}",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "\n": " ",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


def latex_text(text: str) -> str:
    """`text` with everything escaped that LaTeX would take for a command."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex(table: pd.DataFrame, setting: Setting) -> str:
    def line(cells: Sequence[object], row: int | None = None) -> str:
        written = [latex_text(typeset(str(cell))) for cell in cells]
        bold = [f"\\textbf{{{cell}}}" if (row, place) in setting.bold else cell for place, cell in enumerate(written)]
        return " & ".join(bold) + r" \\"

    body = []
    for row, cells in enumerate(table.values.tolist()):
        body += [r"\midrule"] * (row in setting.ruled) + [line(cells, row)]
    head = [f"\\begin{{tabular}}{{l{'r' * (table.shape[1] - 1)}}}", r"\toprule", line(list(table.columns)), r"\midrule"]
    tabular = [*head, *body, r"\bottomrule", r"\end{tabular}"]
    if not setting.caption:
        return "\n".join([*tabular, ""])
    caption = [rf"\caption{{{latex_text(typeset(setting.caption))}}}", rf"\label{{{setting.label}}}"]
    return "\n".join([r"\begin{table}", r"\centering", *caption, *tabular, r"\end{table}", ""])
