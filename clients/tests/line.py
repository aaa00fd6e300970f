"""The way to a service, which a test can cut."""

import math
from dataclasses import dataclass, field

import httpx


@dataclass
class Line(httpx.BaseTransport):
    """The way to the service."""

    left: float = math.inf  # requests that still find it
    sent: int = 0
    inner: httpx.HTTPTransport = field(default_factory=httpx.HTTPTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent += 1
        self.left -= 1
        if self.left < 0:
            raise httpx.ConnectError("the line is cut", request=request)
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()
