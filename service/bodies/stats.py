"""Health, statistics and the operators' switch."""

from pydantic import BaseModel, Field

from service.bodies.fields import Strict


class Health(BaseModel):
    """Whether the service lives, or is ready."""

    status: str = Field(examples=["ok"])


class TierUsage(BaseModel):
    """What one tier of the store holds; no budget where nothing limits it."""

    tier: str = Field(examples=["lmdb"])
    blobs: int = Field(examples=[1200])
    bytes: int = Field(examples=[9_600_000_000])
    budget: int | None = Field(examples=[200_000_000_000])


class Served(BaseModel):
    """What requests of this tenant met since the process began. `sources`: chunks by where their caches came from."""

    requests: int
    sources: dict[str, int] = Field(examples=[{"ram": 40, "lmdb": 9, "computed": 1}])
    hit_rates: dict[str, float] = Field(description="By tier, in [0, 1]", examples=[{"ram": 0.8, "lmdb": 0.18}])
    prompt_tokens: int
    tokens_saved: int = Field(description="Tokens of prompts whose keys and values were reused")


class Stats(BaseModel):
    """What a tenant has. `served` is null for a key with a filter, `store` for all but operators."""

    documents: int
    chunks: int
    served: Served | None
    store: list[TierUsage] | None
    bytes_per_token: float | None = Field(description="Of a sample of the stored chunks; null where none is")


class BlendSwitch(Strict):
    """Whether requests reuse caches at all, and which share of them does; null for the share in the settings."""

    enabled: bool
    share: float | None = Field(None, ge=0, le=1)
