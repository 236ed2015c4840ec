"""Values as JSON has them."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd


def plain(value: Any) -> Any:
    """numpy and pandas values as Python's own, also inside; NA and what is not finite: None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or value is pd.NA:
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows, plain."""
    return [plain(row) for row in table.to_dict("records")]
