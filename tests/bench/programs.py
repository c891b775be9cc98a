"""Programs that stand in for vLLM's Python and for llama.cpp, written where a test wants them.

What they emit for a prompt is its last token, counted up. A prompt that begins with DEADLY kills them.
"""

import sys
from textwrap import dedent

DEADLY = 666
OLD = "0.0.0"  # a version of vLLM that counts no drafts


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{dedent(text)}")
    path.chmod(0o755)
    return path


def vllm_python(folder, version="0.0.1", arctic=None):
    """Answers the probe and the worker's orders; started.jsonl beside it gets the engine's settings.

    ``arctic`` is its version of arctic-inference.

    Every text has three drafts, two of them with two tokens accepted.
    """
    return executable(
        folder / "python",
        f"""
        import json, os, pathlib, sys
        if sys.argv[1] == "-c":
            print(json.dumps({{"version": {version!r}, "arctic_inference": {arctic!r}, "preload": []}}))
            sys.exit()
        engine = json.loads(sys.argv[2])
        threads = {{name: os.environ[name] for name in ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")}}
        with open(pathlib.Path(__file__).with_name("started.jsonl"), "a") as stream:
            stream.write(json.dumps({{**engine, **threads, "pid": os.getpid()}}) + "\\n")
        print(json.dumps({{"ready": "now"}}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            with open(pathlib.Path(__file__).with_name("orders.jsonl"), "a") as stream:
                stream.write(line)
            if any(prompt[0] == {DEADLY} for prompt in order["prompts"]):
                print("out of everything", file=sys.stderr, flush=True)
                os._exit(7)
            count = order["num_tokens"]
            tokens = [list(range(prompt[-1] + 1, prompt[-1] + 1 + count)) for prompt in order["prompts"]]
            drafts = [None if {version == OLD} else [1, 0, 2] for _ in tokens]
            print(json.dumps({{"tokens": tokens, "drafts": drafts}}), flush=True)
        """,
    )


def llama_cpp(folder):
    """Sources with a server and a converter; started.jsonl gets the server's words, converted.jsonl the converter's."""
    executable(
        folder / "build" / "bin" / "llama-server",
        f"""
        import http.server, json, os, pathlib, sys
        if "--version" in sys.argv:
            print("version: 17 (abc)", file=sys.stderr)
            sys.exit()
        with open(pathlib.Path(__file__).parents[2] / "started.jsonl", "a") as stream:
            stream.write(json.dumps(sys.argv[1:]) + "\\n")
        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, answer):
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            def do_GET(self):
                self.reply({{"status": "ok"}})
            def do_POST(self):
                order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompts, count = order["prompt"], order["n_predict"]
                if prompts[0][0] == {DEADLY}:
                    print("out of everything", flush=True)
                    os._exit(7)
                with open(pathlib.Path(__file__).parents[2] / "orders.jsonl", "a") as stream:
                    stream.write(json.dumps(order) + "\\n")
                drafts = "--spec-type" in sys.argv
                drafting = {{"timings": {{"draft_n": 9, "draft_n_accepted": count // 2}}}} if drafts else {{}}
                rows = [
                    {{"index": at, "tokens": list(range(prompt[-1] + 1, prompt[-1] + 1 + count)), **drafting}}
                    for at, prompt in enumerate(prompts)
                ]
                self.reply(rows[::-1] if len(rows) > 1 else rows[0])
        address = ("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1]))
        http.server.ThreadingHTTPServer(address, Handler).serve_forever()
        """,
    )
    executable(
        folder / "convert_hf_to_gguf.py",
        """
        import json, pathlib, sys
        from conversion.base import TextModel
        model = TextModel()
        model.dir_model = pathlib.Path(sys.argv[1])
        words = {"words": sys.argv[1:-1], "splitting": model.get_vocab_base_pre("a tokenizer")}
        try:
            model._create_vocab_sentencepiece()
        except FileNotFoundError:
            words["pieces"] = "none"
        with open(pathlib.Path(__file__).with_name("converted.jsonl"), "a") as stream:
            stream.write(json.dumps(words) + "\\n")
        pathlib.Path(sys.argv[-1]).write_text("weights")
        """,
    )
    executable(
        folder / "conversion" / "base.py",
        """
        class TextModel:
            def get_vocab_base_pre(self, tokenizer):
                raise NotImplementedError("not recognized")
            def _create_vocab_sentencepiece(self):
                import no_such_package
        """,
    )
    return folder
