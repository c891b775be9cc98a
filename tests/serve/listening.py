"""A server of the tiny pair at a port of its own, in a thread of this process: for what sockets and signals do."""

import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

from paceline.serve.app import make_app
from paceline.serve.network import bind, url_of
from paceline.serve.process import Process, configure
from paceline.serve.settings import Limits, Settings
from tests.serve.served import engine


@contextmanager
def listening(app=None, *, drain_seconds=20.0, limits=None, settings=None, **options):
    """The process of ``app`` or of one of the tiny pair, its address and what it said. It is ended by a signal, if the
    test has not done so.
    """
    if app is None:
        app = make_app(engine(**options), Settings(names=("tiny",), limits=limits or Limits(), **(settings or {})))
    ready, said = threading.Event(), []
    with bind("127.0.0.1", 0, has_key=False) as bound:
        process = Process(
            configure(app), app.state.engine, drain_seconds=drain_seconds, ready=ready.set, say=said.append
        )
        thread = threading.Thread(target=process.run, kwargs={"sockets": [bound]})
        url = url_of(bound, encrypted=False)
        port = bound.getsockname()[1]
        thread.start()
        try:
            assert ready.wait(30)
            yield SimpleNamespace(process=process, url=url, port=port, said=said, thread=thread)
        finally:
            process.handle_exit(15, None)
            thread.join(30)
            assert not thread.is_alive()


def sent(port, *parts):
    """A connection on which ``parts`` are sent at once."""
    made = socket.create_connection(("127.0.0.1", port), timeout=20)
    for part in parts:
        made.sendall(part)
    return made


def answer(connection):
    """Everything that comes on it until it is closed."""
    found = b""
    with connection:
        while True:
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                return found
            if not part:
                return found
            found += part
