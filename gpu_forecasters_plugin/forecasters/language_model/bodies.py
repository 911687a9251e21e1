"""Bodies of answers within bounds: an endpoint may send gigabytes, or kilobytes that unpack to gigabytes."""

from __future__ import annotations

from typing import Any

__all__ = ["UnreadableBodyError", "bounded_http_client"]

_LARGEST_ERROR = 2**16
"""Of an answer that is an error only the beginning is read: its status says what it is."""
_ENCODINGS = ("gzip", "deflate")
"""Asked for, and read. They unpack to a thousand times their size at most, so that one piece from the network, of 64
KiB, is never more than 64 MiB; other encodings, and one upon the other, have no such bound."""


class UnreadableBodyError(Exception):
    """A body that is too large, or encoded as nobody asked for."""


def bounded_http_client(vendor: Any, largest_body: int) -> Any:
    """An HTTP client for ``openai`` that never holds more of a body than it may.

    A body that is larger is dropped together with its connection as soon as that shows.

    Args:
        vendor: the ``openai`` package, which brings its HTTP library.
        largest_body: most bytes of a body, unpacked. While it is unpacked, one piece more can be there.
    """

    class BoundedClient(vendor.DefaultAsyncHttpxClient):  # type: ignore[misc] # openai may not be installed
        async def send(self, request: Any, **options: Any) -> Any:
            response = await super().send(request, **(options | {"stream": True}))
            try:
                body = await _bounded_body(response, largest_body)
            finally:
                await response.aclose()
            left_out = ("content-encoding", "content-length", "transfer-encoding")
            headers = [(name, text) for name, text in response.headers.multi_items() if name not in left_out]
            return type(response)(
                response.status_code, headers=headers, content=body, request=response.request
            )

    return BoundedClient(follow_redirects=False, headers={"Accept-Encoding": ", ".join(_ENCODINGS)})


async def _bounded_body(response: Any, largest_body: int) -> bytes:
    """The body; of an error its beginning.

    Raises:
        UnreadableBodyError: it is too large, or cannot be unpacked within bounds.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", *_ENCODINGS):
        if not response.is_success:
            return b""
        raise UnreadableBodyError(f"the answer is encoded as {encoding:.40}, which was not asked for")
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if not response.is_success and len(body) >= _LARGEST_ERROR:
            return bytes(body[:_LARGEST_ERROR])
        if len(body) > largest_body:
            raise UnreadableBodyError(f"the answer is larger than {largest_body / 2**20:.0f} MiB")
    return bytes(body)
