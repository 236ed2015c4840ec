"""Paired inference: what changed between two Score tables of one benchmark, and how sure we are.

The unit of inference is the stereotype (the cluster): pairs that fill one stereotype into many
templates and names are one observation. Everything is computed from sums over clusters
(`clusters`), which are cut once for every estimator:

- a *level* is the mean over pairs, for the macro scope the mean over groups of their means;
- *distance* is |bias - 50|, for the macro scope the mean over groups of it;
- the *test* swaps the labels before and after within whole clusters and recomputes the change
  (`resampling`);
- the *standard error* is CR2 with Satterthwaite degrees of freedom (`robust`); for distance,
  which has a kink at 50, the standard deviation over the bootstrap;
- the *intervals* are those of the cluster bootstrap, percentile and BCa (`resampling`);
- p is adjusted within families stated in words (`corrections`), and the verdict follows by rule,
  with a test of its own before anything is called unchanged (`verdicts`);
- two kinds of clusters at once where the pairs carry them (`two_way`); the papers' tests under
  their own name (`published`).

The test speaks of these two models. A claim about a *method* needs several training runs and
placebo runs beside them: a run's noise is shared by all its clusters (`runs`).
"""

from eval.inference.clusters import ClusterSums, cluster_sums
from eval.inference.comparison import DELTA_COLUMNS, Comparison
from eval.inference.corrections import CORRECTIONS, adjust, benjamini_hochberg, holm
from eval.inference.draws import EXACT_FLIPS
from eval.inference.notes import SOFT_DRIFT
from eval.inference.published import (
    MCNEMAR_EXACT_BELOW,
    PUBLISHED_COLUMNS,
    PUBLISHED_TEST,
    stars,
)
from eval.inference.resampling import bootstrap, swap_test
from eval.inference.robust import standard_errors
from eval.inference.sentences import confidence, format_p, signed
from eval.inference.settings import InferenceSettings
from eval.inference.two_way import TWO_WAY_COLUMNS
from eval.inference.verdicts import FEW_CLUSTERS, plain_verdict
from eval.inference.whole import compare

__all__ = [
    "CORRECTIONS",
    "DELTA_COLUMNS",
    "EXACT_FLIPS",
    "FEW_CLUSTERS",
    "MCNEMAR_EXACT_BELOW",
    "PUBLISHED_COLUMNS",
    "PUBLISHED_TEST",
    "SOFT_DRIFT",
    "TWO_WAY_COLUMNS",
    "ClusterSums",
    "Comparison",
    "InferenceSettings",
    "adjust",
    "benjamini_hochberg",
    "bootstrap",
    "cluster_sums",
    "compare",
    "confidence",
    "format_p",
    "holm",
    "plain_verdict",
    "signed",
    "standard_errors",
    "stars",
    "swap_test",
]
