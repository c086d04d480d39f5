"""The two sockets of a replica: the ring's, and the bulk channel's."""

from typing import Final

from ordering.driver import Driver
from ordering.errors import ConfigurationError
from ordering.sealing import Keyring
from ordering.transports.addresses import parse_address, parse_endpoint
from ordering.transports.bulk_tcp import BulkHandler, BulkLimits, BulkServer, serve_bulk
from rsm.config import ReplicaConfig

_PORT_TRIES: Final = 20
# More than clients may have at once, for their calls and their links: a state must find its way all the same.
_LIMITS: Final = BulkLimits(connections_max=128)


async def open_channels(
    driver_type: type[Driver],
    config: ReplicaConfig,
    keyring: Keyring | None,
    serve: BulkHandler,
    boot: int,
) -> tuple[Driver, BulkServer]:
    """The same port for UDP and TCP. Where any will do, one is looked for that both can have."""
    asked = parse_endpoint(config.bind, "bind")
    for attempt in range(1, _PORT_TRIES + 1):
        driver = await driver_type.open(
            bind=config.bind, keyring=keyring, insecure=config.insecure, advertise=config.advertise
        )
        port = asked.port or parse_address(driver.address).endpoint.port
        try:
            return driver, await serve_bulk(asked.host, port, keyring, serve, boot=boot, limits=_LIMITS)
        except OSError as error:
            driver.close()
            if asked.port or attempt == _PORT_TRIES:
                raise ConfigurationError(
                    f"bind: TCP port {port} of {asked.host} cannot be used: {error.strerror}"
                ) from None
        except BaseException:
            driver.close()
            raise
    raise AssertionError("the last attempt raises")
