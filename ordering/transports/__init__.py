"""The shells that move bytes: what the driver and the bulk channel know of sockets.

| question | file |
|---|---|
| What does an address say? | ``addresses.py`` |
| How is a UDP socket read, written and measured? | ``udp.py`` |
| Which datagrams does a packet cost? | ``routes.py`` |
| How does one datagram reach many? | ``multicast.py`` |
| How does what is too large for datagrams travel? | ``bulk_tcp.py`` |
"""
