"""Clients of others against a running service, whose connections end with them and not whenever memory is collected."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr

from tests.service.serving import Inside


def official(service: Inside, *, key: str = "") -> OpenAI:
    """OpenAI's own, with the admin key or another one."""
    inner = httpx.Client(trust_env=False)
    return OpenAI(api_key=key or service.key, base_url=f"{service.base_url}/v1", http_client=inner, max_retries=0)


@contextmanager
def langchain(service: Inside, **more: Any) -> Iterator[ChatOpenAI]:  # noqa: ANN401 - what LangChain's takes
    with httpx.Client(trust_env=False) as inner:
        yield ChatOpenAI(
            model="default",
            api_key=SecretStr(service.key),
            base_url=f"{service.base_url}/v1",
            max_retries=0,
            http_client=inner,
            **more,
        )
