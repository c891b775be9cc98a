"""The options of ``paceline audit`` and their help. The command's code, and torch with it, loads only when it runs."""

from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.commands import COMMANDS
from paceline.core.registry import Registry

OF_URL = Registry("command", {"audit --url": "paceline.cli.audit_server:AuditServer"})
SERVER = "A server"
OF_DRAFTING = ("draft", "drafter", "num_draft_tokens", "draft_quantization", "verifier")
OF_SERVERS = ("served_model", "api_key_env", "timeout", "near_tie")


def audit(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Directory or Hub id.")],
    draft: o.Draft = None,
    drafter: o.Drafter = None,
    num_draft_tokens: o.NumDraftTokens = None,
    draft_quantization: o.DraftQuantization = None,
    verifier: o.Verifier = "coupled",
    url: Annotated[
        str | None,
        typer.Option(
            help="Audit this OpenAI-compatible server instead, MODEL being what it says it serves: "
            "http://localhost:8000/v1.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    served_model: Annotated[
        str | None,
        typer.Option(help="What the server calls it; found in its list by default.", rich_help_panel=SERVER),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="VAR", help="The environment variable that holds the server's key.", rich_help_panel=SERVER
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that an answer may take.", rich_help_panel=SERVER)] = 120.0,
    near_tie: Annotated[
        float,
        typer.Option(
            help="Greedy texts may part where the model prefers its own token by at most this many nats.",
            rich_help_panel=SERVER,
        ),
    ] = 0.5,
    num_tokens: Annotated[int, typer.Option(help="Sampled tokens whose law is judged.")] = 20_000,
    text_length: Annotated[int, typer.Option(help="Tokens of each text.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", "--batch", help="Texts, or requests, at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the sampled texts.")] = 0,
    dtype: o.Dtype = None,
    device: o.Device = None,
    backend: o.Backend = "auto",
    quantization: o.Quantization = None,
    enforce_eager: o.EnforceEager = False,
    threads: o.Threads = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = False,
) -> int:
    """Check that drafting keeps its promises with this model: equal tokens, the target's law, the acceptance due.

    Greedy and sampled texts are compared with plain decoding. Sampled tokens are judged against the target's laws,
    which plain forwards give: their surprise, their places, their ranks; a bias of 2 % in total variation is found in
    20,000 tokens. With a draft model, acceptance is compared with its closed form. Takes minutes.

    With `--url`, the texts are a server's, whatever decodes there: is it MODEL, with MODEL's law?

    Examples:

        paceline audit DIR --draft SMALL_DIR
        paceline audit DIR --drafter ngram --verifier rejection --num-tokens 5000 --json
        paceline audit DIR --url http://localhost:8000/v1 --batch 32
    """
    _refuse(context, url)
    options = o.ModelOptions(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        revision=revision,
        trust_remote_code=trust_remote_code,
        backend=backend,
        enforce_eager=enforce_eager,
        quantization=quantization,
    )
    if url is not None:
        return (
            OF_URL.find("audit --url")(
                model=options,
                url=url,
                served_model=served_model,
                api_key_env=api_key_env,
                timeout=timeout,
                near_tie=near_tie,
                num_tokens=num_tokens,
                text_length=text_length,
                batch_size=batch_size,
                seed=seed,
                json=json,
            )
        ).run()
    return (
        COMMANDS.find("audit")(
            model=options,
            drafting=o.DraftOptions(
                draft=draft,
                drafter=drafter,
                num_draft_tokens=num_draft_tokens,
                verifier=verifier,
                draft_quantization=draft_quantization,
            ),
            num_tokens=num_tokens,
            text_length=text_length,
            batch_size=batch_size,
            seed=seed,
            json=json,
        )
    ).run()


def _refuse(context: typer.Context, url: str | None) -> None:
    """Raise ValueError naming an option that was given and does not apply."""
    names = OF_SERVERS if url is None else OF_DRAFTING
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = f"--{name.replace('_', '-')}"
            if url is None:
                raise ValueError(f"{option} without --url: it is about a server, give --url too or leave it out")
            raise ValueError(f"{option} and --url: what drafts there is the server's own choice; leave {option} out")
