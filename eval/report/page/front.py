"""The front on the page of many runs: a plot and a table a benchmark."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from eval.inference import signed
from eval.report import tables
from eval.report.page import cells, chart

BEST, OTHER, DEGRADED = "strong", "c3 d0", "c0 d0"


def parts(points: pd.DataFrame) -> list[dict[str, Any]]:
    """What the template shows: a part a benchmark. `points`: see eval.report.figures.front."""
    return [_part(str(name), rows) for name, rows in points.groupby("benchmark", sort=False)]


def _standing(point: Mapping[Any, Any]) -> str:
    if point["degraded"]:
        return "degraded"
    return "on the front" if point["on_front"] else "another is better"


def _part(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    rows = rows.sort_values(["worse", "distance"], kind="stable")
    points = rows.to_dict("records")
    said = [
        f"{point['setting']}\nperplexity {signed(point['worse'])} %, "
        f"{tables.number(point['distance'])} points from 50 "
        f"({_standing(point)})"
        for point in points
    ]
    lines = [
        # A line of one point each: nothing joins settings.
        chart.Line(
            str(point["setting"]),
            [point["distance"] if at == number else float("nan") for at in range(len(points))],
            DEGRADED if point["degraded"] else BEST if point["on_front"] else OTHER,
        )
        for number, point in enumerate(points)
    ]
    before = float(rows["distance_before"].mean())
    label = f"{name}: distance from 50 against the change of perplexity"
    plot = chart.plot(
        label, [point["worse"] for point in points], lines, said, neutral=before, height=260
    )
    return {
        "name": name,
        "plots": [
            {"title": "|bias − 50|, points", "unit": "change of perplexity, %", "svg": plot}
        ],
        "legend": [
            (chart.key(BEST, mark=True), "on the front"),
            (chart.key(OTHER, mark=True), "another setting is better in both"),
            *(
                [(chart.key(DEGRADED, mark=True), "degraded")]
                if rows["degraded"].any()
                else []
            ),
        ],
        "caption": f"{name}: a mark a setting, the mean of its seeds. Lower is nearer 50, further "
        "left keeps more of the language; the dashed line is the distance before.",
        "table": cells.table(
            f"Settings, {name}",
            "Distance: mean over groups of |bias − 50|, points. On the front: of the settings "
            "that aren't degraded, no other is as good in both and better in one.",
            ["setting", "Δ perplexity, %", "distance", "before", "Δ grammar, points",
             "standing", "runs"],
            [
                [
                    cells.text(point["setting"], "wrap"),
                    cells.change(point["worse"]),
                    cells.level(point["distance"]),
                    cells.level(point["distance_before"]),
                    cells.change(point["grammar"], why="not measured"),
                    cells.text(_standing(point)),
                    cells.count(point["runs"]),
                ]
                for point in points
            ],
        ),
    }  # fmt: skip
