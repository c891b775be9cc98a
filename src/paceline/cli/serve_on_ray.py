"""``paceline serve --ray``: replicas of the server on a Ray cluster. Loads no Ray until it is asked for."""

# Ray is an extra, and its decorators have no types.
# pyright: reportMissingImports=false, reportArgumentType=false

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from paceline.cli.command import EXIT_INTERRUPTED, EXIT_OK
from paceline.cli.options import AT_LEAST_1
from paceline.cli.serve_options import NetworkOptions

if TYPE_CHECKING:
    from paceline.api import Engine
    from paceline.serve.settings import Settings

RAY = Group("Ray", sort_key=7)
LOCAL = "local"
ELSEWHERE = ("root_path", "ssl_keyfile", "ssl_certfile", "uvicorn_log_level", "drain_timeout", "allowed_origins")


@Parameter(name="*", group=RAY)
@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Whether the server runs on a Ray cluster, and how."""

    ray: str | None = None
    """Address of a Ray cluster that runs the server; auto is that of this machine, local starts one."""
    replicas: Annotated[int | None, AT_LEAST_1] = None
    """Replicas, each with an engine; 1 by default."""
    max_replicas: Annotated[int | None, AT_LEAST_1] = None
    """Replicas at most: as many are started as there is work for."""
    replica_gpus: float = 0
    """GPUs of a replica."""

    def check(self, network: NetworkOptions) -> None:
        """Raise ValueError for what contradicts itself, and for what Ray's own HTTP server does not do."""
        if self.ray is None:
            if self.replicas is not None or self.max_replicas is not None or self.replica_gpus:
                raise ValueError("--replicas, --max-replicas and --replica-gpus without --ray: give --ray ADDRESS too")
            return
        if self.replica_gpus < 0:
            raise ValueError(f"--replica-gpus {self.replica_gpus}: give at least 0")
        if self.max_replicas is not None and self.max_replicas < (self.replicas or 1):
            raise ValueError(f"--max-replicas {self.max_replicas}: give at least --replicas, {self.replicas or 1}")
        plain = NetworkOptions()
        for name in ELSEWHERE:
            if getattr(network, name) != getattr(plain, name):
                option = name.replace("_", "-")
                raise ValueError(f"--{option} with --ray: the server of Ray Serve does not do it; leave it out")


def serve_on_ray(
    options: RayOptions,
    make: "Callable[[], Engine]",
    settings: "Settings",
    *,
    address: tuple[str, int],
    cpus: int,
    requests: int,
    limits: dict[str, int | None],
    ready: Callable[[], None],
) -> int:
    """Serve at ``address`` until a signal; ``ready`` is called when requests are taken. The exit code."""
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise ValueError("--ray: it needs Ray; pip install 'paceline[ray]'") from error
    from paceline.serve.ray_serve import Replicas, application

    assert options.ray is not None
    count, most = options.replicas or 1, options.max_replicas
    replicas = Replicas(
        count=count, most=most, requests=requests, cpus=cpus, gpus=options.replica_gpus, options=dict(limits)
    )
    local = {"num_cpus": (most or count) * cpus + 1, "include_dashboard": False} if options.ray == LOCAL else {}
    try:
        ray.init(address=options.ray, log_to_driver=False, **local)
    except Exception as error:  # of no common class
        raise ValueError(f"--ray {options.ray}: no cluster there ({error}); start one, or give {LOCAL}") from error
    ended, signals = threading.Event(), list[int]()

    def end(number: int, _: object) -> None:
        signals.append(number)
        ended.set()

    try:
        serve.start(http_options={"host": address[0], "port": address[1]})
        serve.run(application(make, settings, replicas))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        ready()
        while not ended.wait(1.0):
            pass
    finally:
        serve.shutdown()
        ray.shutdown()
    return EXIT_INTERRUPTED if signals[0] == signal.SIGINT else EXIT_OK
