"""How a change is tested: what a recipe may say about it."""

from dataclasses import dataclass, field

from eval.errors import RequestError
from eval.inference.corrections import CORRECTIONS
from eval.metrics import TIES


@dataclass
class InferenceSettings:
    """How a change is tested. The margins of equivalence are stated here, before any is seen."""

    seed: int = 0
    resamples: int = 10_000  # of the bootstrap, and of the test where it isn't exact
    alpha: float = 0.05
    correction: str = "holm"  # within a family: holm, bh (false discovery rate), none
    ties: str = "half"  # half, exclude, reference: see eval.metrics.TIES
    # columns to slice by (tier, origin, template, …); if empty, `slice` where a table has it
    slices: list[str] = field(default_factory=list)
    second_cluster: str = "auto"  # a column beside the stereotype; auto: `name`; none
    equivalence_points: float = 2.0  # bias and distance are "unchanged" within so many points
    equivalence_nats: float = 0.05  # for the margin, within so many nats
    power: float = 0.8  # of which the smallest change that could be shown is told

    def margin(self, metric: str) -> float:
        """Within how much a metric's change counts as none: points, for the margin nats.

        NaN for ties, and for the soft and sigmoid scores, which hardly move at all: a model that
        changes sides may move them by half a point, so that any margin in points would let
        everything through.
        """
        margins = {"bias": self.equivalence_points, "distance": self.equivalence_points}
        return {**margins, "margin": self.equivalence_nats}.get(metric, float("nan"))


def check(settings: InferenceSettings) -> None:
    """Refuse settings that mean nothing.

    Raises:
        RequestError: names the setting, its value, and what it may be.
    """
    if settings.ties not in TIES:
        raise RequestError(f"inference.ties={settings.ties}: must be one of {', '.join(TIES)}")
    if settings.correction not in CORRECTIONS:
        raise RequestError(
            f"inference.correction={settings.correction}: must be one of {', '.join(CORRECTIONS)}"
        )
    taken = sorted({"overall", "macro", "group"} & set(settings.slices))
    if taken:
        raise RequestError(
            f"inference.slices={taken[0]}: is always there; name other columns, such as tier"
        )
    for key in ("alpha", "power"):
        if not 0 < getattr(settings, key) < 1:
            raise RequestError(
                f"inference.{key}={getattr(settings, key)}: must lie between 0 and 1"
            )
    if settings.resamples < 100:
        raise RequestError(f"inference.resamples={settings.resamples}: must be at least 100")
    for key in ("equivalence_points", "equivalence_nats"):
        if not getattr(settings, key) > 0:
            raise RequestError(f"inference.{key}={getattr(settings, key)}: must be more than 0")
