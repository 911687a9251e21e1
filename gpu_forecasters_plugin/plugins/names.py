"""Names in a configuration: text that has to be one of those that are registered."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticKnownError

from gpu_forecasters_plugin.hookspecs import (
    Factory,
    ForecasterFactory,
    ObserverFactory,
    PolicyFactory,
    RankingRuleFactory,
)

__all__ = ["ForecasterName", "ObserverName", "PolicyName", "RankingName"]


def _one_of(factory: type[Factory]) -> AfterValidator:
    def check(name: str) -> str:
        # Late: plugins are loaded when a configuration names something, not when this package is imported.
        from gpu_forecasters_plugin.plugins.loading import registry

        known = registry().names(factory)
        if name not in known:
            quoted = [repr(name) for name in known]
            expected = " or ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))
            raise PydanticKnownError("literal_error", {"expected": expected})
        return name

    return AfterValidator(check)


ForecasterName = Annotated[str, _one_of(ForecasterFactory)]
RankingName = Annotated[str, _one_of(RankingRuleFactory)]
PolicyName = Annotated[str, _one_of(PolicyFactory)]
ObserverName = Annotated[str, _one_of(ObserverFactory)]
