"""A page that is watched: what it asked for, what it said in the console, and what its policy stopped."""

import json
import time
import urllib.request
from pathlib import Path

STOPPED = "window.stopped = []; addEventListener('securitypolicyviolation', (e) => stopped.push(e.violatedDirective))"
PROMPT = '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self, items=()):
        self._items = list(items)

    def push(self, item):
'''
BODY = {"temperature": 0.6, "seed": 7, "max_tokens": 48, "return_steps": True}
BODY["speculative_config"] = {"num_speculative_tokens": 4}


class Recorder:
    """Keeps what ``app`` answered last under /v1."""

    def __init__(self, app):
        self.app, self.last = app, b""

    async def __call__(self, scope, receive, send):
        if not scope.get("path", "").startswith("/v1/"):
            await self.app(scope, receive, send)
            return
        self.last = b""

        async def kept(message):
            self.last += message.get("body", b"")
            await send(message)

        await self.app(scope, receive, kept)


def asked(url, body=BODY, path="/v1/completions"):
    """What the server answers to a program: the text, the steps, and why it ended. Which steps are taken without a
    draft, to measure, depends on how many were taken before.
    """
    if path == "/v1/completions":
        body = {"prompt": PROMPT, **body}
    data = json.dumps({**body, "stream": True}).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return read(answer.read())


def read(answer):
    """Text, steps and reason of a stream."""
    text, steps, reason = "", [], None
    for line in answer.split(b"\n"):
        if line.startswith(b"data: {"):
            (choice,) = json.loads(line[6:])["choices"]
            text += choice.get("text") or choice.get("delta", {}).get("content", "")
            steps += choice.get("steps", ())
            reason = reason or choice["finish_reason"]
    return text, steps, reason


class Watched:
    """A page at ``url`` in ``context``; ``close`` asserts that nothing was wrong."""

    def __init__(self, context, url, recorder):
        self.context, self.url, self.recorder = context, url, recorder
        self.requests, self.said, self.expected = [], [], []
        context.add_init_script(STOPPED)
        self.page = context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(url)
        if self.page.locator("body.viewer").count() == 0:
            self.until("document.querySelector('#model').textContent || !document.querySelector('#alert').hidden")

    def close(self):
        stopped = self.page.evaluate("window.stopped")
        self.context.close()
        said = [line for line in self.said if not any(part in line for part in self.expected)]
        elsewhere = [one for one in self.requests if not one.startswith((self.url, "blob:"))]
        assert not (said or elsewhere or stopped), (said, elsewhere, stopped)

    def until(self, condition, seconds=20):
        """Wait for it. (The page's policy lets no driver poll inside it.)"""
        end = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            assert time.monotonic() < end, condition
            time.sleep(0.03)

    def generate(self, prompt=PROMPT, wait=True, **options):
        """Fill in the form and submit it."""
        page = self.page
        options = {"temperature": 0.6, "seed": 7, "max_tokens": 48, **options}
        page.evaluate("document.querySelector('#options').open = true")
        for name, value in options.items():
            page.fill(f"[name={name}]", str(value))
        page.evaluate("document.querySelector('#options').open = false")
        page.fill("#prompt", prompt)
        page.click("#go")
        if wait:
            self.wait()

    def wait(self):
        """Until an answer has ended."""
        self.page.wait_for_selector("#go:not([hidden])", timeout=60_000)
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def reported(self):
        """What the server told the page last: text, steps and reason."""
        return read(self.recorder.last)

    def tokens(self):
        """Class and text of every token of the newest answer."""
        script = "(spans) => spans.map((span) => [span.className, span.textContent])"
        return self.page.locator(".reply:last-child .answer .token").evaluate_all(script)

    def step(self, number):
        """Show step ``number``, from 0."""
        self.page.locator("#slider").fill(str(number))

    def nodes(self):
        """State, label and class of every node that is drawn."""
        script = """(nodes) => nodes.map((node) =>
            [node.dataset.state, node.querySelector('.label').textContent, node.getAttribute('class')])"""
        return self.page.locator("#tree .node").evaluate_all(script)

    def downloaded(self, button, folder):
        """The file that ``button`` gives."""
        with self.page.expect_download() as found:
            self.page.click(button)
        path = Path(folder) / found.value.suggested_filename
        found.value.save_as(path)
        return path

    def alert(self):
        """What is wrong, as the page says it."""
        self.page.wait_for_selector("#alert:not([hidden])")
        return self.page.text_content("#alert")
