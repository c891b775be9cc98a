"""Chromium, driven by playwright, before a server of the embedded pair; both live as long as the suite of the page."""

import os
import shutil
import socket
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn

from paceline.serve.app import make_app
from paceline.serve.settings import Settings
from tests.serve.browser.watched import Recorder, Watched

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TEMPLATE = "{% for message in messages %}# {{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
BRANCHES = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0, 0))


def pytest_collection_modifyitems(items):
    here = [item for item in items if item.path.is_relative_to(os.path.dirname(__file__))]
    for item in here:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def chromium():
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install --group page")
    path = os.environ.get("PACELINE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}, or name it in PACELINE_CHROMIUM")
    with api.sync_playwright() as driver:
        # A container has no name spaces for a sandbox; only our own page is opened. Glyphs are drawn alike everywhere.
        options = ["--no-sandbox", "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"]
        browser = driver.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def embedded():
    """The embedded target, and a drafter of trees for it."""
    import torch

    from paceline.api import embedded_pair, load
    from paceline.api.build import build_shaped
    from paceline.drafters.tree.shapes import Topology

    target, draft = (load(path, dtype=torch.float32) for path in embedded_pair())
    target.tokenizer.inner.chat_template = TEMPLATE
    return target, lambda: build_shaped(draft, target=target, shape=Topology(BRANCHES))


@contextmanager
def served(embedded, *, batch_size=2, **settings):
    """A server in a thread: its address, its engine, and a recorder of its answers."""
    from paceline.api import Engine

    target, drafter = embedded
    engine = Engine(target, drafter=drafter(), num_draft_tokens=4, batch_size=batch_size)
    app = make_app(engine, Settings(**{"names": ("paceline-demo",), "return_steps": True, **settings}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    recorder = Recorder(app)
    server = uvicorn.Server(uvicorn.Config(recorder, port=port, log_level="error", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}", engine, recorder
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def server(embedded):
    with served(embedded) as found:
        yield found


@pytest.fixture
def opened(chromium, server):
    """Opens the page, once or several times; at the end nothing was wrong in any."""
    made = []

    def make(url=server[0], **options):
        context = chromium.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
        made.append(Watched(context, url, server[2]))
        return made[-1]

    yield make
    for one in made:
        one.close()
