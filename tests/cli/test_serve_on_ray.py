"""``paceline serve --ray``: what is refused before anything is loaded or started."""

import sys

import pytest

from paceline.cli.serve_on_ray import RayOptions, serve_on_ray
from paceline.cli.serve_options import NetworkOptions

PLAIN = NetworkOptions()


@pytest.mark.parametrize(
    ("options", "network", "said"),
    [
        ({"replicas": 2}, PLAIN, "without --ray: give --ray ADDRESS too"),
        ({"max_replicas": 2}, PLAIN, "without --ray"),
        ({"replica_gpus": 1.0}, PLAIN, "without --ray"),
        ({"ray": "local", "replica_gpus": -1.0}, PLAIN, "--replica-gpus -1.0: give at least 0"),
        ({"ray": "local", "replicas": 3, "max_replicas": 2}, PLAIN, "--max-replicas 2: give at least --replicas, 3"),
        ({"ray": "local"}, NetworkOptions(root_path="/x"), "--root-path with --ray: the server of Ray Serve does not"),
        ({"ray": "local"}, NetworkOptions(drain_timeout=5.0), "--drain-timeout with --ray"),
        ({"ray": "local"}, NetworkOptions(allowed_origins=("http://a",)), "--allowed-origins with --ray"),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_name(options, network, said):
    with pytest.raises(ValueError, match=said.replace("/", ".")):
        RayOptions(**options).check(network)


def test_what_goes_together_is_taken():
    RayOptions().check(NetworkOptions(root_path="/x"))
    RayOptions(ray="auto", replicas=2, max_replicas=2, replica_gpus=0.5).check(PLAIN)


def test_without_ray_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--ray: it needs Ray; pip install 'paceline\[ray\]'"):
        serve_on_ray(
            RayOptions(ray="local"),
            lambda: pytest.fail("an engine was made"),
            None,
            address=("127.0.0.1", 0),
            cpus=1,
            requests=1,
            limits={},
            ready=lambda: None,
        )
