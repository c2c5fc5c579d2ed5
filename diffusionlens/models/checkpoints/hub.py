"""Whether Hugging Face's hub can be reached, asked before its own library is: without a network that tries for a minute."""

import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from huggingface_hub import constants

_AGAIN = 1.0  # second after which a network that says no is asked once more


def why_unreachable() -> str | None:
    """Why the hub can't be reached; None where it can, or where that is not ours to know (a proxy, or offline by wish).

    Only what says no counts, or what does not answer for as long as the hub's own library waits for one answer
    (HF_HUB_ETAG_TIMEOUT, 10 s by default): a slow network is a network.
    """
    if constants.HF_HUB_OFFLINE or any(key in urllib.request.getproxies() for key in ("https", "http", "all")):
        return None
    try:
        place = urlsplit(constants.ENDPOINT)
        host, port = place.hostname, place.port or {"http": 80, "https": 443}[place.scheme]
        (host or "").encode("idna")
    except (ValueError, KeyError):
        host = None
    if not host:
        return f"HF_ENDPOINT '{constants.ENDPOINT}' is no address; wanted one like https://huggingface.co"
    reason = _connect(host, port)
    if reason is not None:
        time.sleep(_AGAIN)
        reason = _connect(host, port)
    return reason


def _connect(host: str, port: int) -> str | None:
    seconds = max(constants.HF_HUB_ETAG_TIMEOUT, 1)
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family in dict.fromkeys(entry[0] for entry in addresses):
            address = next(entry[4] for entry in addresses if entry[0] == family)
            try:
                with socket.socket(family, socket.SOCK_STREAM) as line:
                    line.settimeout(seconds / 2)  # asked twice
                    line.connect(address)
                    return None
            except OSError as error:
                reason = error
    except OSError as error:
        reason = error
    if isinstance(reason, TimeoutError):
        return f"{host} does not answer within {seconds} s; HF_HUB_ETAG_TIMEOUT=60 waits longer"
    return f"{host} can't be reached: {reason.strerror or reason}"


@contextmanager
def from_the_cache() -> Iterator[None]:
    """The hub's library takes what lies in its cache, and asks nobody."""
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
