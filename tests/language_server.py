"""A client of pyright's language server, which VS Code's Python extension completes by: just enough for completion."""

import json
import subprocess
import sys


class LanguageServer:
    """The server over ``folder``, in the environment ``variables``; use as a context manager."""

    def __init__(self, folder, variables):
        self.folder, self.number = folder, 0
        words = [sys.executable, "-m", "pyright.langserver", "--stdio"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)

    def __enter__(self):
        self.ask("initialize", {"processId": None, "rootUri": self.folder.as_uri(), "capabilities": {}})
        self.send({"method": "initialized", "params": {}})
        return self

    def __exit__(self, *_):
        self.ask("shutdown", None)
        self.send({"method": "exit"})
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()

    def complete(self, text):
        """The names offered at the end of ``text``."""
        self.number += 1
        document = {"uri": (self.folder / f"text{self.number}.py").as_uri()}
        opened = {**document, "languageId": "python", "version": 1, "text": text}
        self.send({"method": "textDocument/didOpen", "params": {"textDocument": opened}})
        lines = text.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        found = self.ask("textDocument/completion", {"textDocument": document, "position": position})
        return [item["label"] for item in found["items"]]

    def ask(self, method, params):
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        while True:
            message = self.receive()
            if "method" not in message and message.get("id") == self.number:
                return message["result"]
            if "method" in message and "id" in message:  # it asks for settings, and wants to tell of its progress
                items = message.get("params", {}).get("items")
                answer = None if items is None else [self._setting(item.get("section")) for item in items]
                self.send({"id": message["id"], "result": answer})

    def send(self, message):
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        self.process.stdin.flush()

    def receive(self):
        length = 0
        while (line := self.process.stdout.readline().strip()) or not length:
            assert line or self.process.poll() is None, "the server has ended"
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return json.loads(self.process.stdout.read(length))

    @staticmethod
    def _setting(section):
        return {"pythonPath": sys.executable} if section == "python" else None
