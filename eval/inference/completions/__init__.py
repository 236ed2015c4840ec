"""Completed sentences: how the categories of their subjects differ, before, after, and between.

Subjects are unmarked, queer-marked or non-queer-marked (QueerGen, 2601.20731). The paper's own
statistics stand beside those that its design asks for: prompts share their subject, marker and
template, so that 3,100 of them are no 3,100 observations.

- `grid` gathers a judged table, one row a prompt;
- `multiway` estimates means and gaps, robust to all three;
- `permutation` tests what can be exchanged, and says what cannot;
- `mixed` fits a mixed model beside them;
- `words` takes diversity, divergence and telling words;
- `study` does all of it for one table, `compare` for two.
"""

from eval.inference.completions.change import CHANGE_COLUMNS, Change, compare
from eval.inference.completions.grid import GAPS, Grid, grid
from eval.inference.completions.study import (
    ANOVA_COLUMNS,
    GAP_COLUMNS,
    LEVEL_COLUMNS,
    Study,
    one_way,
    study,
)
from eval.inference.completions.words import (
    DIVERGENCE_COLUMNS,
    DIVERSITY_COLUMNS,
    jsd,
    rarefied,
    tf_idf,
)

__all__ = [
    "ANOVA_COLUMNS",
    "CHANGE_COLUMNS",
    "DIVERGENCE_COLUMNS",
    "DIVERSITY_COLUMNS",
    "GAPS",
    "GAP_COLUMNS",
    "LEVEL_COLUMNS",
    "Change",
    "Grid",
    "Study",
    "compare",
    "grid",
    "jsd",
    "one_way",
    "rarefied",
    "study",
    "tf_idf",
]
