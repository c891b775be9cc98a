"""Prompts for audits: beginnings of Python functions."""

DEFAULT_PROMPTS = tuple(
    f"def {verb}_{what}({argument}):\n    "
    for verb, what, argument in (
        ("read", "lines", "path"),
        ("count", "words", "text"),
        ("merge", "sorted", "first, second"),
        ("parse", "header", "data"),
        ("find", "duplicates", "items"),
        ("write", "report", "rows, file"),
        ("check", "types", "values"),
        ("split", "path", "name"),
        ("remove", "prefix", "text, prefix"),
        ("open", "socket", "host, port"),
        ("format", "time", "seconds"),
        ("walk", "tree", "node"),
        ("sum", "columns", "table"),
        ("load", "module", "name"),
        ("compare", "versions", "old, new"),
        ("close", "all", "handles"),
    )
)
