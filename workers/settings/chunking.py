"""How documents are cut."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from connectors.sections import ConfigSection, Flag, Mismatch, OneOf, Whole, refuse
from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import STRATEGIES
from workers.settings.values import Separators

SEMANTIC_SIZES = {"minSize": 100, "maxSize": 500, "overlap": 50}
"""Sizes of the strategy semantic if the file gives none; the others take the defaults of the fields."""


class ChunkingSettings(ConfigSection):
    """How a document is cut into chunks."""

    strategy: Annotated[str, OneOf(STRATEGIES)] = Field(
        default=ChunkingOptions.strategy, description=f"How texts are cut: {', '.join(STRATEGIES)}."
    )
    unit: Literal["characters", "tokens"] = ChunkingOptions.unit
    """What sizes count: characters, or tokens of the model."""
    min_size: Whole = Field(default=ChunkingOptions.min_size, ge=0, le=100_000)
    """Smaller leftovers join their neighbour."""
    max_size: Whole = Field(default=ChunkingOptions.max_size, ge=20, le=100_000)
    """Largest chunk; 500 with the strategy semantic."""
    overlap: Whole = Field(default=ChunkingOptions.overlap, ge=0, le=50_000)
    """What a chunk repeats of the one before it; 50 with the strategy semantic."""
    split_on: Separators = ChunkingOptions.split_on
    r"""Where text may be cut, best place first; \n is a line break."""
    preserve_whitespace: Flag = ChunkingOptions.preserve_whitespace
    """Keep runs of blanks and empty lines as they are."""

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_strategy(cls, value: Any) -> Any:
        if not isinstance(value, dict) or str(value.get("strategy")).lower() != "semantic":
            return value
        given = {to_camel(key) for key in value}
        return value | {key: size for key, size in SEMANTIC_SIZES.items() if key not in given}

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        wrong = (
            (self.overlap >= self.max_size, "overlap", f"less than maxSize ({self.max_size})"),
            (self.min_size > self.max_size, "min_size", f"at most maxSize ({self.max_size})"),
        )
        refuse(self, [Mismatch(key=key, expected=text) for bad, key, text in wrong if bad])
        return self

    def options(self) -> ChunkingOptions:
        """The same for a chunker."""
        return ChunkingOptions(
            strategy=self.strategy,
            min_size=self.min_size,
            max_size=self.max_size,
            overlap=self.overlap,
            split_on=self.split_on,
            preserve_whitespace=self.preserve_whitespace,
            unit=self.unit,
        )
