"""The smallest change that could be shown, against statsmodels and a simulation."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from eval.errors import RequestError
from eval.inference import power
from eval.inference.draws import sign_flip


def earlier(**changed):
    """An earlier run's Delta table: overall over 40 stereotypes, one group over 10 of them."""
    columns = {
        "scope": ["overall", "overall", "overall", "group:gay", "group:lesbian"],
        "metric": ["bias", "margin", "distance", "bias", "bias"],
        "n_clusters": [40, 40, 40, 10, 1],
        "se": [2.0, 0.1, 1.5, 4.0, math.nan],
        "df": [30.0, 30.0, math.nan, 7.0, math.nan],
    }
    return pd.DataFrame({**columns, **changed})


@pytest.mark.parametrize("n", [4, 10, 30, 167, 4000])
@pytest.mark.parametrize(("alpha", "wanted"), [(0.05, 0.8), (0.01, 0.9)])
def test_as_statsmodels(n, alpha, wanted):
    d = TTestPower().solve_power(nobs=n, alpha=alpha, power=wanted, alternative="two-sided")
    found = power.smallest_change(2 / math.sqrt(n), n - 1, alpha, wanted)
    assert found == pytest.approx(2 * d, rel=1e-6)


def test_many_degrees_of_freedom_are_the_normal_case():
    z = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert power.smallest_change(1.0, 1e7) == pytest.approx(z, rel=1e-4)


def test_shapes_and_what_cannot_be_known():
    found = power.smallest_change(np.array([[1.0, np.nan], [2.0, 1.0]]), np.array([9.0, 0.0]))
    assert found.shape == (2, 2)
    assert found[1, 0] == pytest.approx(2 * found[0, 0])
    assert np.isnan(found[:, 1]).all()
    assert power.smallest_change(0.0, 5) == 0


def test_a_simulated_change_of_that_size_is_shown_in_80_per_cent():
    """The cluster sign-flip test on 20 clusters of normal differences, 600 times."""
    rng = np.random.default_rng(5)
    n, runs = 20, 600
    change = power.smallest_change(1 / math.sqrt(n), n - 1)
    draws = rng.normal(change, 1, (n, runs))
    shown = sign_flip(draws, 999, rng)[0] < 0.05
    assert abs(shown.mean() - 0.8) < 3 * math.sqrt(0.8 * 0.2 / runs)


def test_more_clusters_scale_the_error_and_a_group_keeps_its_share():
    found = power.needed(earlier(), [40, 160]).set_index(["planned", "scope", "metric"])
    assert list(power.needed(earlier()).columns) == list(power.POWER_COLUMNS)
    same = found.loc[(40, "overall", "bias")]
    assert same["se"] == 2
    assert same["df"] == 30
    assert same["smallest_change"] == pytest.approx(float(power.smallest_change(2, 30)))
    more = found.loc[(160, "overall", "bias")]
    assert more["se"] == 1
    assert more["df"] == pytest.approx(30 * 159 / 39)
    assert found.loc[(160, "group:gay", "bias"), "n_clusters"] == 40
    assert found.loc[(40, "overall", "distance"), "df"] == 39
    assert found.loc[(40, "overall", "margin"), "unit"] == "nats"
    assert (40, "group:lesbian", "bias") not in found.index


def test_five_clusters_can_show_nothing_whatever_the_change():
    found = power.needed(earlier(), [5, 6])
    overall = found[found["scope"] == "overall"].set_index(["planned", "metric"])
    assert overall.loc[(5, "bias"), "smallest_change"] == math.inf
    assert np.isfinite(overall.loc[(6, "bias"), "smallest_change"])


def test_in_words():
    said = power.sentence(power.needed(earlier(), [5, 40]))
    size = float(power.smallest_change(2, 30))
    assert said == (
        "The smallest change of overall bias that a test at 5 % would show with 80 % power, by "
        f"the number of stereotypes: no change at all with 5, {size:.1f} points with 40."
    )
    macro = earlier(scope=["macro"] * 5, metric=["distance"] * 5)
    whole = pd.concat([earlier().head(1), macro])
    assert "mean over groups of |bias − 50|" in power.sentence(power.needed(whole))
    assert power.sentence(power.needed(earlier()).head(0)).startswith("Nothing is planned")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"clusters": [1, 20]}, "power: clusters=1: plan for two or more"),
        ({"clusters": []}, "power: clusters=none"),
        ({"alpha": 1.5}, "inference.alpha=1.5"),
        ({"power": 0.01}, r"inference.power=0.01: must be above alpha \(0.05\)"),
    ],
)
def test_a_wrong_plan_is_named(arguments, said):
    with pytest.raises(RequestError, match=said):
        power.needed(earlier(), **arguments)


def test_an_earlier_run_that_cannot_be_planned_from():
    with pytest.raises(RequestError, match="has no column df; give a deltas.csv"):
        power.needed(earlier().drop(columns="df"))
    with pytest.raises(RequestError, match="no standard error to plan from"):
        power.needed(earlier(se=math.nan))
