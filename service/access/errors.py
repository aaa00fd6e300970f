"""What is refused about keys, tenants, and the files that hold them."""

from service.errors import ServiceError


class AccessError(ServiceError, ValueError):
    """A name, a key, an archive or a folder that will not do. The text names the value and the remedy."""

    status = 422
    title = "The request is not valid"
