"""What a step's function gets: frames of topics, of tables that it looks up, and what views make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import Lookup, PipelineView

if TYPE_CHECKING:
    from duramen.pipelines.model.declaration import Source


def frame_of(source: Source, topics: Mapping[str, DataFrame], lookup: Callable[[Lookup], DataFrame]) -> DataFrame:
    """The DataFrame of a source. topics: those of the step's topics, by name."""
    if isinstance(source, Lookup):
        return lookup(source)
    if isinstance(source, PipelineView):
        found = source(*(frame_of(each, topics, lookup) for each in source.sources))
        if not isinstance(found, DataFrame):
            raise ConfigError(f"the view {source.name} gives {type(found).__name__}, not a DataFrame")
        return found
    return topics[source.name]
