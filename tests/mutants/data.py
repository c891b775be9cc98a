"""Mutants of the training data: of what is learned, what is held out, and which row is read when."""

from tests.mutants.mutant import Mutant

ROWS = "tests/train/test_data_rows.py"
SOURCES = "tests/train/test_data_sources.py"
KEPT = "tests/train/test_data_kept.py"
FEATURES = "tests/train/test_data_features.py"
COMMANDS = "tests/cli/test_data.py"

MUTANTS = (
    Mutant(
        "packed rows leave out the token between two",
        "train/data/packing.py",
        "(len(self.stored.tokens) - 1) // self.length), dtype=np.int64) * self.length",
        "(len(self.stored.tokens) - 1) // (self.length + 1)), dtype=np.int64) * (self.length + 1)",
        (ROWS,),
    ),
    Mutant(
        "documents that share a row see each other",
        "train/data/packing.py",
        "segment[at:] = number",
        "segment[at:] = 0",
        (ROWS,),
    ),
    Mutant(
        "the first token of a document is learned",
        "train/data/packing.py",
        "            if span.start == 0:\n                learned[at] = False\n",
        "",
        (ROWS,),
    ),
    Mutant(
        "padding is learned",
        "train/data/packing.py",
        "np.zeros(self.length + 1, bool)",
        "np.ones(self.length + 1, bool)",
        (ROWS,),
    ),
    Mutant(
        "every epoch in the same order",
        "train/data/mixture.py",
        "seed=self._seed + which + 1, epoch=epoch)[index]",
        "seed=self._seed + which + 1, epoch=0)[index]",
        (ROWS,),
    ),
    Mutant(
        "rows of a batch are counted from the process's first",
        "train/data/mixture.py",
        "self.row(step * self._rows + row) for row in rows",
        "self.row(step * self._rows + row) for row in range(len(rows))",
        (ROWS,),
    ),
    Mutant(
        "a shuffle that is not walked back into its range",
        "train/data/order.py",
        "        while found >= self.size:",
        "        while False:",
        (ROWS,),
    ),
    Mutant(
        "a user's words are learned",
        "text/turns.py",
        '        if message.get("role") != ASSISTANT:\n            continue\n',
        "        if index == 0:\n            continue\n",
        (SOURCES,),
    ),
    Mutant(
        "a turn that is written otherwise later passes",
        "text/turns.py",
        "if whole[: len(after)] != after:",
        "if False:",
        (SOURCES,),
    ),
    Mutant(
        "the same file on both sides",
        "train/data/manifest.py",
        "if other.splits != file.splits:",
        "if False:",
        (KEPT,),
    ),
    Mutant(
        "the split depends on the place in the list",
        "train/data/prepare.py",
        "return _by_hash(file.sha256, validation.share)",
        "return _by_hash(hashlib.sha256(str(id(file)).encode()).hexdigest(), validation.share)",
        (KEPT,),
    ),
    Mutant(
        "another end of text takes the same tokens",
        "train/data/encoders.py",
        'return f"bytes/{self.end_of_text}"',
        'return "bytes"',
        (KEPT,),
    ),
    Mutant(
        "hidden states of the token after",
        "train/data/features.py",
        'hidden = file.get_slice("hidden_states")[span.start : span.start + size]',
        'hidden = file.get_slice("hidden_states")[:].roll(-1, 0)[span.start : span.start + size]',
        (FEATURES,),
    ),
    Mutant(
        "prompts are learned as if the target had written them",
        "cli/data_regenerate.py",
        "mask = [0] * len(prompt)",
        "mask = [1] * len(prompt)",
        (COMMANDS,),
    ),
)
