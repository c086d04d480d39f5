"""Which pages a replica shows, and where.

==========  ======================================================  ==========================
``/healthz``  200 while it serves, else 503 and how it stands         metrics port, local socket
``/metrics``  figures for Prometheus                                  metrics port
``/status``   ``ReplicaStatus``, in JSON or, if asked, MessagePack    local socket
==========  ======================================================  ==========================

The port is ``metrics`` of the configuration. The local socket is ``status.sock`` in the data directory of a
durable replica: whoever may open it need not have the group's key. A page that cannot be shown is no reason
not to serve: it is logged, and the replica goes on.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from ordering.transports.addresses import is_loopback, parse_endpoint
from rsm.config import ReplicaConfig
from rsm.logs import logger
from rsm.pages import Headers, Maker, Page, Pages
from rsm.status import ReplicaStatus, Standing

log = logger(__name__)

SOCKET_NAME: Final = "status.sock"


async def show(
    config: ReplicaConfig, status: Callable[[], ReplicaStatus], metrics: Maker | None
) -> list[Pages]:
    """``metrics`` makes its page, where there is to be one."""

    def health(_: Headers) -> Page:
        standing = status().standing
        serving = standing is Standing.SERVING
        shown = HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE
        return Page(f"{standing}\n".encode(), status=shown)

    def stands(headers: Headers) -> Page:
        if "msgpack" in headers.get("accept", ""):
            return Page(msgspec.msgpack.encode(status()), "application/msgpack")
        return Page(msgspec.json.encode(status()), "application/json")

    shown: list[Pages] = []
    if metrics is not None:
        shown.append(await _on_port(config, Pages({"/metrics": metrics, "/healthz": health})))
    if config.data is not None:
        pages = Pages({"/status": stands, "/healthz": health})
        try:
            await pages.listen_locally(config.data / SOCKET_NAME)
        except OSError as error:
            log.error("there is no local socket", group=config.group, data=str(config.data), error=str(error))
        shown.append(pages)
    return shown


async def _on_port(config: ReplicaConfig, pages: Pages) -> Pages:
    host, port = parse_endpoint(config.metrics, "metrics")
    try:
        port = await pages.listen(host, port)
    except OSError as error:
        log.error("no metrics are served", group=config.group, metrics=config.metrics, error=str(error))
        return pages
    tell = log.info if is_loopback(host) else log.warning
    tell("metrics are served", group=config.group, host=host, port=port, public=not is_loopback(host))
    return pages
