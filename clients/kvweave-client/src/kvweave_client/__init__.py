"""The client of kvweave, a RAG chunk-cache service. Speaks HTTP, and knows nothing of how the service works."""

from types import ModuleType as _ModuleType

from kvweave_client.aio import AsyncClient as AsyncClient
from kvweave_client.answers import Accepted as Accepted
from kvweave_client.answers import Answer as Answer
from kvweave_client.answers import BlendSwitch as BlendSwitch
from kvweave_client.answers import ChatAnswer as ChatAnswer
from kvweave_client.answers import ChatDelta as ChatDelta
from kvweave_client.answers import ChatEvent as ChatEvent
from kvweave_client.answers import ChunkReport as ChunkReport
from kvweave_client.answers import ChunkState as ChunkState
from kvweave_client.answers import Collection as Collection
from kvweave_client.answers import CollectionDeleted as CollectionDeleted
from kvweave_client.answers import Deleted as Deleted
from kvweave_client.answers import Document as Document
from kvweave_client.answers import DocumentChunk as DocumentChunk
from kvweave_client.answers import Fused as Fused
from kvweave_client.answers import Hits as Hits
from kvweave_client.answers import Job as Job
from kvweave_client.answers import JobItem as JobItem
from kvweave_client.answers import Loaded as Loaded
from kvweave_client.answers import Model as Model
from kvweave_client.answers import QueryEvent as QueryEvent
from kvweave_client.answers import Ranked as Ranked
from kvweave_client.answers import Relevance as Relevance
from kvweave_client.answers import Report as Report
from kvweave_client.answers import Retrieved as Retrieved
from kvweave_client.answers import Source as Source
from kvweave_client.answers import Stats as Stats
from kvweave_client.answers import Token as Token
from kvweave_client.answers import TokenLogprob as TokenLogprob
from kvweave_client.answers import Touched as Touched
from kvweave_client.answers import Usage as Usage
from kvweave_client.client import Client as Client
from kvweave_client.errors import BadRequest as BadRequest
from kvweave_client.errors import Cancelled as Cancelled
from kvweave_client.errors import ConnectionFailed as ConnectionFailed
from kvweave_client.errors import FieldError as FieldError
from kvweave_client.errors import Forbidden as Forbidden
from kvweave_client.errors import JobFailed as JobFailed
from kvweave_client.errors import KVWeaveError as KVWeaveError
from kvweave_client.errors import NotFound as NotFound
from kvweave_client.errors import Problem as Problem
from kvweave_client.errors import RateLimited as RateLimited
from kvweave_client.errors import RequestError as RequestError
from kvweave_client.errors import ServiceError as ServiceError
from kvweave_client.errors import ServiceFailed as ServiceFailed
from kvweave_client.errors import StreamCut as StreamCut
from kvweave_client.errors import TimedOut as TimedOut
from kvweave_client.errors import TooLarge as TooLarge
from kvweave_client.errors import Unauthorized as Unauthorized
from kvweave_client.errors import Unavailable as Unavailable
from kvweave_client.errors import UnexpectedAnswer as UnexpectedAnswer
from kvweave_client.following import batches as batches
from kvweave_client.shared import Access as Access
from kvweave_client.shared import Connection as Connection
from kvweave_client.streams import AsyncStream as AsyncStream
from kvweave_client.streams import Stream as Stream
from kvweave_client.target import BASE_URL as BASE_URL
from kvweave_client.target import Retries as Retries
from kvweave_client.target import Timeouts as Timeouts
from kvweave_client.uploads import File as File

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll] (it reads the aliases)
    name for name, value in list(vars().items()) if not (name.startswith("_") or isinstance(value, _ModuleType))
]
