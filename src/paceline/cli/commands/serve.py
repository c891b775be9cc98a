"""``paceline serve``: a model behind the HTTP interface of OpenAI."""

import gc
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from paceline.cli.command import EXIT_DIFFERENT, EXIT_INTERRUPTED, EXIT_OK, Command
from paceline.cli.console import open_notes
from paceline.cli.draft_options import DraftOptions
from paceline.cli.options import AT_LEAST_1, DRAFTING, MODEL, LogLevel, Profile, Quiet, check_profile, one_of
from paceline.cli.progress import waiting
from paceline.cli.serve_on_ray import RayOptions, serve_on_ray
from paceline.cli.serve_options import AnswerOptions, LimitOptions, MaxModelLen, NetworkOptions, ServedModelOptions

if TYPE_CHECKING:
    import socket

    from paceline.api import Engine, Loaded

EMBEDDED = "paceline-demo"  # the name of the embedded pair


@dataclass(frozen=True, slots=True)
class Serve(Command):
    """Serve a model under the HTTP interface of OpenAI. Drafting does not change the output.

    Without MODEL the embedded pair is served. The address is printed when requests are taken. The first Ctrl-C or
    SIGTERM lets running requests end, and new ones are answered 503; the second cancels them.

    Examples:

        paceline serve
        paceline serve DIR --draft SMALL_DIR --port 8001
        paceline serve DIR --drafter ngram --max-num-seqs 16 --max-model-len 4096
        paceline serve DIR --speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'
        paceline serve DIR --drafter ngram --ray local --replicas 2
        paceline serve DIR --host 0.0.0.0 --api-key-file keys.txt --served-model-name tutor
    """

    model: ServedModelOptions = field(default_factory=ServedModelOptions)
    _: KW_ONLY
    drafting: DraftOptions = field(default_factory=DraftOptions)
    speculative_config: Annotated[str | None, Parameter(group=DRAFTING)] = None
    """vLLM's speculative_config, as JSON."""
    profile: Profile = None
    served_model_name: Annotated[tuple[str, ...], Parameter(group=MODEL)] = ()
    """Name of the model for clients; may be repeated. The first is in answers; MODEL by default."""
    max_model_len: Annotated[MaxModelLen, Parameter(group=MODEL)] = None
    max_num_seqs: Annotated[int, Parameter(alias="--batch-size", group=MODEL), AT_LEAST_1] = 8
    """Requests that are decoded together; others wait."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    enable_per_request_metrics: bool = False
    """Give acceptance and times with every answer. They tell something of the text."""
    stream_interval: Annotated[int | None, AT_LEAST_1] = None
    """Tokens of each event of a stream, so that packets do not tell what was accepted; as they come by default."""
    return_steps: Annotated[str, one_of(("auto", "on", "off"))] = "auto"
    """Whether requests may ask for the draft of every step, which the page at / shows; auto: where no key is needed."""
    on_ray: RayOptions = field(default_factory=RayOptions)
    quiet: Quiet = False
    log_level: LogLevel = None

    def run(self) -> int:
        """Serve until a signal."""
        notes = open_notes(quiet=self.quiet, log_level=self.log_level)
        drafting = self._drafting()
        drafting.check()
        self._check()
        self.on_ray.check(self.network)
        from paceline.serve import check_installed
        from paceline.serve.network import bind, check_certificate, read_keys

        check_installed()
        keys = read_keys(self.network.api_key, self.network.api_key_file)
        check_certificate(self.network.ssl_keyfile, self.network.ssl_certfile)
        with bind(self.network.host, self.network.port, has_key=bool(keys)) as bound:
            return self._serve(bound, keys, drafting, notes)

    def _check(self) -> None:
        """Refuse what could not be meant, before anything is loaded."""
        check_profile(self.profile)
        if self.network.root_path and not self.network.root_path.startswith("/"):
            raise ValueError(f"--root-path {self.network.root_path}: it begins with a slash, as in /models")

    def _drafting(self) -> DraftOptions:
        """The options of drafting, whichever way they were given; the embedded draft model where none was."""
        given = self.drafting.draft is not None or self.drafting.drafter is not None
        if self.speculative_config is not None:
            if given:
                raise ValueError("--speculative-config beside --draft or --drafter: give one of them")
            return replace(self.drafting, drafter=self.speculative_config)
        if not self.model.model and not given:
            from paceline.api import embedded_pair

            return replace(self.drafting, draft=str(embedded_pair()[1]))
        return self.drafting

    def _serve(self, bound: "socket.socket", keys: tuple[str, ...], drafting: DraftOptions, notes: Console) -> int:
        from paceline.serve.app import make_app
        from paceline.serve.network import local_names, url_of
        from paceline.serve.process import Process, configure, interrupted
        from paceline.serve.settings import Settings

        settings = Settings(
            names=self.served_model_name or (self.model.model or EMBEDDED,),
            api_keys=keys,
            limits=self.limits.limits(),
            per_request_metrics=self.enable_per_request_metrics,
            stream_interval=self.stream_interval,
            return_steps=self.return_steps == "on" or (self.return_steps == "auto" and not keys),
            tool_call_parser=self.answers.tool_call_parser,
            enable_auto_tool_choice=self.answers.enable_auto_tool_choice,
            reasoning_parser=self.answers.reasoning_parser,
            hosts=() if keys else local_names(bound),
            allowed_origins=self.network.allowed_origins,
        )
        url = url_of(bound, encrypted=self.network.ssl_certfile is not None)
        waits = {
            "max_waiting": self.limits.max_waiting,
            "max_waiting_tokens": self.limits.max_waiting_tokens,
        }
        if self.on_ray.ray is not None:
            address = bound.getsockname()[:2]
            bound.close()  # for Ray Serve to take it
            return serve_on_ray(
                self.on_ray,
                partial(self.make_engine, drafting),
                settings,
                address=address,
                cpus=self.model.threads or 1,
                requests=self.max_num_seqs,
                limits=waits,
                ready=lambda: None if self.quiet else notes.print(f"Paceline serves {url}/v1 on Ray", soft_wrap=True),
            )
        with nullcontext() if self.quiet else waiting(notes, f"loading {self.model.model or 'the embedded pair'}"):
            engine = self.make_engine(drafting)
        app = make_app(engine, settings, **waits)

        def say(words: str) -> None:
            if not self.quiet:
                notes.print(f"paceline: {words}", soft_wrap=True, markup=False)

        def ready() -> None:
            # What is loaded stays: a collection that looked at all of it would stop every request for 0.1 to 0.2 s.
            gc.collect()
            gc.freeze()
            if not self.quiet:
                self._announce(notes, url, engine, settings.names, keyed=bool(keys))

        config = configure(
            app,
            root_path=self.network.root_path,
            log_level=self.network.uvicorn_log_level,
            keyfile=self.network.ssl_keyfile,
            certfile=self.network.ssl_certfile,
        )
        process = Process(config, app.state.engine, drain_seconds=self.network.drain_timeout, ready=ready, say=say)
        process.run(sockets=[bound])
        if interrupted(process):
            return EXIT_INTERRUPTED
        return EXIT_OK if process.complete else EXIT_DIFFERENT

    def make_engine(self, drafting: DraftOptions) -> "Engine":
        """The engine, with the model loaded."""
        from paceline.api import Engine

        target = self._target()
        return Engine(
            target,
            drafter=drafting.choose(target),
            verifier=drafting.verifier,
            num_draft_tokens=drafting.count,
            batch_size=self.max_num_seqs,
            max_length=self.max_model_len,
            profile=self.profile or "auto",
        )

    def _target(self) -> "Loaded":
        if self.model.model:
            return self.model.load()
        from paceline.api import embedded_pair

        # float32 is faster than bfloat16 for models this small, and more than one thread slower.
        dtype, threads = self.model.dtype or "float32", self.model.threads or 1
        return replace(self.model, model=str(embedded_pair()[0]), dtype=dtype, threads=threads).load()

    def _announce(self, notes: Console, url: str, engine: "Engine", names: tuple[str, ...], *, keyed: bool) -> None:
        """The address, what is served there, and the limits."""
        decoder, target = engine.decoder, engine.target
        most, length = decoder.plan.max_draft_tokens, decoder.batch.max_length
        rows = (
            ("model", f"{', '.join(names)}: {target.lm.num_layers} layers, {str(target.dtype).removeprefix('torch.')}"),
            ("drafts", f"at most {most} tokens a step, by {type(decoder.drafter).__name__}" if most else "none"),
            ("limits", f"{decoder.rows} requests at once, {self.limits.max_waiting} waiting; {length} tokens each"),
            ("key", "needed" if keyed else "not needed: only this machine reaches the server"),
        )
        notes.print(f"Paceline serves {url}/v1", style="bold", soft_wrap=True, markup=False)
        for name, value in rows:
            notes.print(f"  {name:8}{value}", soft_wrap=True, markup=False)
