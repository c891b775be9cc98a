"""Where a server listens, and who may ask it. What is unsafe or impossible is refused before a model is loaded."""

import errno
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

KEY_VARIABLES = ("PACELINE_API_KEY", "VLLM_API_KEY")


def read_keys(given: Sequence[str], file: Path | None, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The keys that clients may send: those given and those of ``file``, one a line; where there is neither, that of
    the environment. Raises ValueError for a file that cannot be read or has none, and for what no header can carry.
    """
    keys = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text"
            raise ValueError(f"--api-key-file {file}: {reason}; give a file with a key on each line") from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise ValueError(f"--api-key-file {file}: no key in it; write one on each line")
        keys += found
    if not given and file is None:
        keys += next(([environment[name]] for name in KEY_VARIABLES if environment.get(name)), [])
    if any(not key or not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise ValueError("a key is empty, or has a space or a letter beyond ASCII: a header cannot carry it")
    return tuple(keys)


def bind(host: str, port: int, *, has_key: bool) -> socket.socket:
    """A socket at ``host`` and ``port``, 0 being any that is free; it does not listen yet.

    Raises ValueError for an address that other machines reach where no key is asked for, and OSError with a message for
    one that is taken or that this machine does not have.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise OSError(f"--host {host}: {error.strerror}; give an address of this machine") from error
    if not has_key and not ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ValueError(
            f"--host {host} without a key: every machine that reaches it could use it; give --api-key, --api-key-file "
            f"or {KEY_VARIABLES[0]}, or --host 127.0.0.1"
        )
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # else a server that has just ended keeps its port for a minute
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Of two that begin at once both are given the port, and the second fails only when it listens.
        bound.listen(1)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"--port {port}: in use at {host}; give another, or 0 for any that is free") from error
        raise OSError(f"--host {host} --port {port}: {error.strerror}") from error
    return bound


def url_of(bound: socket.socket, *, encrypted: bool) -> str:
    """What a client on this machine calls ``bound`` by."""
    host, port = map(str, bound.getsockname()[:2])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http{'s' if encrypted else ''}://{f'[{host}]' if ':' in host else host}:{port}"


def local_names(bound: socket.socket) -> tuple[str, ...]:
    """What programs on this machine may call it by, in URLs."""
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", str(bound.getsockname()[0]))))


def check_certificate(keyfile: Path | None, certfile: Path | None) -> None:
    """Raise ValueError for files that give no encrypted connections."""
    if certfile is None:
        if keyfile is not None:
            raise ValueError(f"--ssl-keyfile {keyfile} without --ssl-certfile: give both")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=lambda: "")
    except OSError as error:  # as are those of ssl
        named = f"--ssl-certfile {certfile}" + (f" --ssl-keyfile {keyfile}" if keyfile else "")
        reason = error.strerror or str(error)
        raise ValueError(
            f"{named}: {reason}; give a certificate and its key in PEM form, without a password"
        ) from error
