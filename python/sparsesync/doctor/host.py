"""The names, addresses and interfaces of this machine."""

from __future__ import annotations

import dataclasses
import fcntl
import socket
import struct


@dataclasses.dataclass(frozen=True)
class Host:
    """The names and addresses of this machine."""

    name: str
    resolved: str  # IPv4 address of the name; empty if it has none
    interfaces: list[str]
    interface: str  # the one of the default route, otherwise lo
    address: str  # its IPv4 address

    @staticmethod
    def here() -> Host:
        """Returns the facts of this machine. Sends no packet but those that resolve its name."""
        name = socket.gethostname()
        try:
            resolved = socket.gethostbyname(name)
        except OSError:
            resolved = ""
        interfaces = [each for _, each in socket.if_nameindex()]
        address = _address_of_route()
        interface = next((each for each in interfaces if _address_of(each) == address), "lo")
        return Host(name, resolved, interfaces, interface, address if interface != "lo" else "127.0.0.1")


def _address_of_route() -> str:
    """Returns the address from which this machine reaches others; that of the loopback interface if it has no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            end.connect(("198.51.100.1", 9))  # reserved for documents; connecting a UDP socket sends nothing
        except OSError:
            return "127.0.0.1"
        return str(end.getsockname()[0])


def _address_of(interface: str) -> str:
    """Returns the IPv4 address of an interface, or an empty string."""
    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        try:
            found = fcntl.ioctl(end.fileno(), siocgifaddr, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(found[20:24])
