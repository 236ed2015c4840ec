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


def shown_in(change, n, alpha, seed, runs=600):
    """How often the cluster sign-flip test shows a change, n clusters of normal differences."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(change, 1, (n, runs))
    return float((sign_flip(draws, 999, rng) < alpha).mean())


@pytest.mark.parametrize("n", [6, 12, 30, 167])
@pytest.mark.parametrize(("alpha", "wanted"), [(0.05, 0.8), (0.01, 0.9)])
def test_as_the_noncentral_t(n, alpha, wanted):
    """Bloom's formula against statsmodels' exact power of the paired t test, within two points."""
    table = earlier(n_clusters=n, df=n - 1.0, se=1 / math.sqrt(n))
    change = power.needed(table, [n], alpha=alpha, power=wanted)["smallest_change"]
    if not np.isfinite(change[0]):
        assert 2.0 ** (1 - n) >= alpha
        return
    exact = TTestPower().power(change[0], nobs=n, alpha=alpha, alternative="two-sided")
    assert exact == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("n", [10, 20])
def test_a_simulated_change_of_that_size_is_shown_in_80_per_cent(n):
    """Planned from a pilot of 40 clusters; the cluster sign-flip test, 600 times."""
    table = earlier(se=1 / math.sqrt(40), df=39.0)
    change = power.needed(table, [n]).set_index("scope").loc["overall", "smallest_change"].iloc[0]
    assert abs(shown_in(change, n, 0.05, seed=5) - 0.8) < 3 * math.sqrt(0.8 * 0.2 / 600) + 0.01
    assert shown_in(change / 2, n, 0.05, seed=6) < 0.5


def test_more_clusters_scale_the_error_and_a_group_keeps_its_share():
    found = power.needed(earlier(), [40, 160]).set_index(["planned", "scope", "metric"])
    assert list(power.needed(earlier()).columns) == list(power.POWER_COLUMNS)
    same = found.loc[(40, "overall", "bias")]
    assert same["se"] == 2
    assert same["df"] == 30
    t = stats.t.ppf(0.975, 30) + stats.t.ppf(0.8, 30)
    assert same["smallest_change"] == pytest.approx(2 * t, rel=1e-12)
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
    assert said == (
        "The smallest change of overall bias that a test at 5 % shows with 80 % power, by the "
        "number of stereotypes: none whatever with 5, 5.8 points with 40."
    )
    macro = earlier(scope=["macro"] * 5, metric=["distance"] * 5)
    whole = pd.concat([earlier().head(1), macro])
    assert "mean over groups of |bias − 50|" in power.sentence(power.needed(whole))
    assert power.sentence(power.needed(earlier()).head(0)).startswith("Neither overall bias")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"clusters": [1, 20]}, "power: clusters=1: plan for two"),
        ({"clusters": []}, "power: clusters=none"),
        ({"alpha": 1.5}, "inference.alpha=1.5"),
        ({"power": 0.01}, r"inference.power=0.01: must be above alpha \(0.05\)"),
    ],
)
def test_a_wrong_plan_is_named(arguments, said):
    with pytest.raises(RequestError, match=said):
        power.needed(earlier(), **arguments)


def test_an_earlier_run_that_cannot_be_planned_from():
    with pytest.raises(RequestError, match="has no column df; give a"):
        power.needed(earlier().drop(columns="df"))
    with pytest.raises(RequestError, match="no standard error to plan from"):
        power.needed(earlier(se=math.nan))
