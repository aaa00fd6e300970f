"""What can go wrong between a prompt and its answer. Each says the value and the remedy."""


class BlendError(Exception):
    """Anything that blend refuses or gives up."""


class UnsupportedModel(BlendError, ValueError):
    """The model cannot be served; the message names the reason."""


class TokenizerError(BlendError, ValueError):
    """A text or a list of messages cannot become token ids."""


class PromptError(BlendError, ValueError):
    """A prompt that cannot be computed: empty, or longer than the model's window."""


class SamplingError(BlendError, ValueError):
    """A sampling parameter outside its range."""


class Busy(BlendError, RuntimeError):
    """The queue is full: the caller may try again later."""


class Late(BlendError, TimeoutError):
    """An answer that is not whole in the time it was given, or cannot be: `retry_after_s` says when it may be."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotFinite(BlendError, ArithmeticError):
    """The model produced NaN or infinity where numbers were due."""
