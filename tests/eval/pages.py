"""Made-up reports for the tests of the page: a usual one, an extreme one, many runs."""

import dataclasses

import numpy as np
import pandas as pd

from eval.inference import InferenceSettings, compare
from eval.report import ReportInput, RunsInput
from tests.eval.scored import simulated, table

FAST = InferenceSettings(resamples=200)
RETENTION = {
    "neutral": {
        "kind": "pseudo-perplexity",
        "before": 12.31,
        "after": 12.93,
        "change_percent": 5.04,
        "ci_low": 3.1,
        "ci_high": 6.9,
        "texts": 200,
        "tokens": 3456,
    }
}
GROUPS = ("asexual", "bisexual", "gay", "lesbian", "nonbinary", "pansexual", "queer", "transgender")


def curve(groups: tuple[str, ...] = GROUPS) -> pd.DataFrame:
    """Scores during training, a gap in one line."""
    rows = [
        {
            "step": step,
            "epoch": step / 100,
            "benchmark": "samples_de",
            "scope": scope,
            "n_pairs": 40,
            "n_clusters": 9,
            "bias": 80 - step / 12 - 2.5 * at + 3 * np.sin(step / 20 + at),
            "soft": 50.5,
            "distance": 0.0,
            "margin": 1.5 - step / 180 - 0.1 * at,
            "valid_loss": 3.25 - step / 400 if step else float("nan"),
        }
        for step in range(0, 201, 25)
        for at, scope in enumerate(["overall", "macro", *(f"group:{name}" for name in groups)])
    ]
    found = pd.DataFrame(rows)
    found.loc[(found["step"] == 50) & (found["scope"] == "group:gay"), "bias"] = float("nan")
    return found


def demo(settings: InferenceSettings = FAST) -> ReportInput:
    """A run like the demo, with every table that a comparison can have."""
    before, after = simulated(clusters=14, groups=GROUPS, each=3)
    rng = np.random.default_rng(1)
    harm = {f"s{number}": harm for number, harm in enumerate(rng.uniform(-3, 3, 14))}
    for scores, shift in ((before, 0.0), (after, -0.4)):
        size = len(scores.table)
        scores.table["harm_mean"] = scores.table["stereotype_id"].map(harm)
        scores.table["name"] = [("Kim", "Robin", "Sascha")[row % 3] for row in range(size)]
        scores.table["identity_more"] = -9 + shift + rng.normal(0, 1, size)
        scores.table["identity_less"] = -8 + rng.normal(0, 1, size)
    return ReportInput(
        title="demo-20260731-101500-3fa2",
        command="mitigate train recipe=demo",
        recipe_yaml="name: demo\nseed: 0\nmethod:\n  name: continued\n  epochs: 3\n",
        manifest={
            "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
            "model": {"licence": "Apache-2.0", "fingerprint": "9f86d081884c7d659a2feaa0c55ad015"},
            "corpus": {"licence": "CC0-1.0", "sha256": "a3bf4f1b2b0b822cd15d6c15b0f00a08" * 2},
            "seed": 0,
            "left_out": [{"row": 3, "sent_more": "a left-out sentence"}],
        },
        comparisons={"samples_de": compare(before, after, settings, name="samples_de")},
        scores={"samples_de": (before, after)},
        retention=RETENTION,
        notes=["One run speaks of one model. A claim about a method needs several seeds."],
        curve=curve(),
    )


def extreme() -> ReportInput:
    """One cluster; only ties; thirty groups of long names; much lost language."""
    many = [f"Gruppe {number} mit einem ganz ungewöhnlich langen Namen" for number in range(29)]
    many.append("Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamten" * 2)
    before, after = simulated(clusters=6, groups=many, each=1, effect=-2.5)
    one = [("gay", "s0", -1.0, -2.0), ("gay", "s0", -2.0, -1.0), ("lesbian", "s0", -3.0, -1.0)]
    changed = [("gay", "s0", -2.0, -1.0), ("gay", "s0", -2.0, -1.0), ("lesbian", "s0", -3.0, -1.0)]
    tied = [(group, f"s{row}", -2.0, -2.0) for group in ("gay", "trans") for row in range(4)]
    exclude = dataclasses.replace(FAST, ties="exclude")
    long = "a_benchmark_with_a_very_long_name_of_a_file_" * 3
    pairs = {
        "many_groups": (before, after, FAST),
        "one_cluster": (table(one), table(changed), FAST),
        "all_ties": (table(tied), table(tied), exclude),
        long: (table(tied), table(tied), FAST),
    }
    return ReportInput(
        title="runs/" + "an-endless-name-of-a-run-" * 6,
        command="mitigate train recipe=demo " + "corpus.path=/a/very/long/path/" * 8,
        recipe_yaml="",
        manifest={},
        comparisons={
            name: compare(first, second, how, name=name)
            for name, (first, second, how) in pairs.items()
        },
        scores={"many_groups": (before, after)},
        retention={
            "neutral": {**RETENTION["neutral"], "change_percent": 250.0, "after": float("nan")}
        },
    )


def runs() -> RunsInput:
    """Six runs of two recipes and placebo on two benchmarks."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(8):
        placebo = number >= 5
        recipe = "demo_control" if placebo else ("demo", "demo_cda")[number % 2]
        for benchmark in ("samples_de", "winoqueer_de"):
            start = 74.0 if benchmark == "samples_de" else 61.5
            delta = rng.normal(0 if placebo else -9, 3)
            rows.append(
                {
                    "run": f"{recipe}-20260731-10{number:02d}-3fa{number}",
                    "recipe": recipe,
                    "placebo": placebo,
                    "seed": number,
                    "benchmark": benchmark,
                    "bias_before": start,
                    "bias_after": start + delta,
                    "bias_delta": delta,
                    "p": float(np.clip(rng.uniform(0, 0.4 if placebo else 0.06), 0.0001, 1)),
                    "distance_before": start - 50,
                    "distance_after": start + delta - 50,
                    "margin_delta": delta / 20,
                    "perplexity_change_percent": rng.normal(4, 3) if number else float("nan"),
                }
            )
    found = pd.DataFrame(rows)
    names = [f"{name} (samples_de)" for name in dict.fromkeys(found["run"])]
    heat = pd.DataFrame(rng.uniform(5, 97, (len(names), len(GROUPS))), names, list(GROUPS))
    heat.iloc[2, 3] = float("nan")
    across = pd.DataFrame(
        {
            "scope": ["mean over models", "mean over languages"],
            "metric": ["bias", "margin"],
            "before": [70.123, 1.2],
            "after": [61.4, 0.7],
            "delta": [-8.7, -0.5],
        }
    )
    return RunsInput(
        title="8 runs side by side",
        command="mitigate report runs/a runs/b out=together",
        table=found,
        heat=heat,
        claims=[
            "demo against demo_control on samples_de: bias fell by 9.1 points more than in the "
            "placebo runs (95 % interval −12.0 to −6.2, p = 0.0021; 3 and 3 runs)."
        ],
        across=across,
        notes=["Three placebo runs give a rough spread."],
    )
