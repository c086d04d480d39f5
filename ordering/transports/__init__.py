"""How datagrams leave and reach a process: what the driver knows of sockets.

| question | file |
|---|---|
| What does an address say? | ``addresses.py`` |
| How is a UDP socket read, written and measured? | ``udp.py`` |
| Which datagrams does a packet cost? | ``routes.py`` |
| How does one datagram reach many? | ``multicast.py`` |
"""
