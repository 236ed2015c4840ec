"""A mixed model beside the tests: category fixed; subject, template and marker random, crossed.

Restricted maximum likelihood by statsmodels' MixedLM, the three crossed effects as variance
components of one group (Baayen, Davidson and Bates 2008). Markers' effects are drawn for marked
prompts alone. Wald's z takes the variances for known: with ten templates it is a little bold, so
that it stands beside the tests and decides nothing. A fit of 3,100 prompts takes some seconds.
"""

import warnings

import numpy as np
import pandas as pd
from scipy.stats import norm
from statsmodels.regression.mixed_linear_model import MixedLM, VCSpec
from statsmodels.tools.sm_exceptions import ConvergenceWarning

from eval.inference.completions.grid import GAPS, gap
from eval.prompts import CATEGORIES

COLUMNS = {
    "measure": "a judge's column",
    "gap": "first category minus second",
    "value": "the gap, as the model has it",
    "se": "its standard error, the variances taken for known",
    "p": "two-sided, Wald's z",
    "var_subject": "variance of subjects",
    "var_template": "variance of templates",
    "var_marker": "variance of markers within their category",
    "var_rest": "variance of what is left",
    "converged": "whether the optimiser says so",
    "told": "what statsmodels warned of, such as a variance of 0 (the boundary)",
}


def fit(values: np.ndarray, prompts: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The model's gaps with COLUMNS, a row each; empty where nothing varies or too little is there.

    `values`: (prompts,), NaN where there is none.
    """
    known = ~np.isnan(values)
    y, rows = values[known], prompts[known]
    there = [name for name in CATEGORIES if (rows["category"] == name).any()]
    effects = {"subject": rows["subject"], "template": rows["template"], "marker": rows["marker"]}
    random = {name: _dummies(column) for name, column in effects.items()}
    random = {name: dummies for name, dummies in random.items() if dummies.shape[1] > 1}
    if len(there) < 2 or not random or np.ptp(y) == 0:
        return pd.DataFrame(columns=list(COLUMNS))
    scale = float(y.std())
    fixed = np.column_stack([(rows["category"] == name).to_numpy(float) for name in there])
    spec = VCSpec(
        list(random),
        [[[str(number) for number in range(each.shape[1])]] for each in random.values()],
        [[each] for each in random.values()],
    )
    model = MixedLM(y / scale, fixed, np.zeros(len(y), dtype=int), exog_vc=spec)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = model.fit(reml=True)
        except np.linalg.LinAlgError as error:
            return _row(measure, np.nan, np.nan, {}, np.nan, False, str(error))
    said = "; ".join(
        dict.fromkeys(
            str(each.message) for each in told if issubclass(each.category, ConvergenceWarning)
        )
    )
    covariance = np.asarray(found.cov_params())[: len(there), : len(there)]
    variances = dict(zip(random, np.asarray(found.vcomp) * scale**2, strict=True))
    parts = []
    for pair in GAPS:
        if not set(pair) <= set(there):
            continue
        contrast = np.asarray([(name == pair[0]) - (name == pair[1]) for name in there], float)
        value = float(contrast @ np.asarray(found.fe_params)) * scale
        se = float(np.sqrt(contrast @ covariance @ contrast)) * scale
        row = _row(
            measure, value, se, variances, float(found.scale) * scale**2, found.converged, said
        )
        parts.append(row.assign(gap=gap(pair)))
    return pd.concat(parts, ignore_index=True)


def _dummies(column: pd.Series) -> np.ndarray:
    """A column of 0 and 1 for each value but the empty one. (rows, values)"""
    names = sorted(set(column) - {""})
    return (column.to_numpy()[:, None] == np.asarray(names, dtype=object)).astype(float)


def _row(
    measure: str,
    value: float,
    se: float,
    variances: dict[str, float],
    rest: float,
    converged: bool,
    told: str,
) -> pd.DataFrame:
    p = float(2 * norm.sf(abs(value) / se)) if se > 0 else np.nan
    return pd.DataFrame(
        [
            {
                "measure": measure,
                "gap": "",
                "value": value,
                "se": se,
                "p": p,
                **{f"var_{name}": variances.get(name, np.nan)
                   for name in ("subject", "template", "marker")},
                "var_rest": rest,
                "converged": bool(converged),
                "told": told,
            }
        ]
    )  # fmt: skip
