"""An error as RFC 9457 has it."""

from pydantic import BaseModel, Field


class FieldError(BaseModel):
    """What is wrong with a field of the request, such as `sampling.top_p`."""

    field: str = Field(examples=["sampling.top_p"])
    message: str = Field(examples=["Input should be less than or equal to 1"])


class Problem(BaseModel):
    """`detail` says what is wrong and what to do; `errors` name fields, where the request is not valid."""

    type: str = "about:blank"
    title: str = Field(examples=["The request is not valid"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["top_p must be in (0, 1], got 1.5"])
    request_id: str = Field(examples=["5f1d0c2ab7e94d0e"])
    errors: list[FieldError] = Field(default_factory=list[FieldError])
