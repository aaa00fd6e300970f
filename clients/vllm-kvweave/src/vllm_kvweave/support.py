"""What of vLLM this package is made for. Whatever else would give wrong answers, or none, stops the start."""

from collections.abc import Sequence
from dataclasses import dataclass

VERSIONS = ("0.31", "0.32")  # tested, and no others
WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix")  # drafts that keep no keys and values


class Unsupported(ValueError):
    """A vLLM, or a setting of it, that this package cannot serve. The text says what would do."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """How vLLM runs, as far as it matters here. `drafts` is the method of speculative decoding, if there is one."""

    version: str
    role: str
    failure_policy: str
    pipeline_ranks: int = 1
    context_ranks: int = 1
    is_latent: bool = False
    drafts: str = ""

    def check(self) -> None:
        """Raises Unsupported with the sentence that mends it."""
        for is_wrong, sentence in self._faults():
            if is_wrong:
                raise Unsupported(f"vllm-kvweave: {sentence}")

    def _faults(self) -> Sequence[tuple[bool, str]]:
        known = " and ".join(VERSIONS)
        return (
            (
                ".".join(self.version.split(".")[:2]) not in VERSIONS,
                f"this release is made for vLLM {known}, and this is {self.version}: install one of both",
            ),
            (self.role != "kv_consumer", f'set "kv_role": "kv_consumer" and not {self.role!r}: kvweave gives alone'),
            (
                self.failure_policy != "recompute",
                'set "kv_load_failure_policy": "recompute": with "fail", a prompt that cannot be fetched has no answer',
            ),
            (self.pipeline_ranks > 1, "pipeline parallelism is not served: use tensor parallelism"),
            (self.context_ranks > 1, "context parallelism lays tokens out over ranks, and is not served: set it to 1"),
            (self.is_latent, "models with latent attention (MLA) are not served: let kvweave's own engine answer"),
            (
                self.drafts not in ("", *WITHOUT_LAYERS),
                f"drafts of {self.drafts!r} have layers that kvweave knows nothing of: use ngram, or none",
            ),
        )
