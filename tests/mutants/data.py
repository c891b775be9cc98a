"""Mutants of the training data: of what is learned, what is held out, and which row is read when."""

from tests.mutants.mutant import Mutant

ROWS = "tests/train/data/test_packing_and_order.py"
SOURCES = "tests/train/data/test_sources.py"
KEPT = "tests/train/data/test_cache_and_manifest.py"
FEATURES = "tests/train/data/test_features.py"
COMMANDS = "tests/cli/test_data.py"

MUTANTS = (
    Mutant(
        "packed rows leave out the token between two",
        "train.data.packing:ConcatenatedPacking._row_starts",
        "np.arange(max(0, (len($tokens) - 1) // $length), dtype=np.int64) * $length",
        "np.arange(max(0, (len($tokens) - 1) // ($length + 1)), dtype=np.int64) * ($length + 1)",
        (ROWS,),
    ),
    Mutant(
        "documents that share a row see each other",
        "train.data.packing:Packing.row",
        "$segment[$at:] = $number",
        "$segment[$at:] = 0",
        (ROWS,),
    ),
    Mutant(
        "the first token of a document is learned",
        "train.data.packing:Packing.row",
        "if $start == 0:\n    $learned[$at] = False",
        "",
        (ROWS,),
    ),
    Mutant(
        "padding is learned",
        "train.data.packing:Packing.row",
        "np.zeros($length + 1, bool)",
        "np.ones($length + 1, bool)",
        (ROWS,),
    ),
    Mutant(
        "every epoch in the same order",
        "train.data.mixture:RowBatches.locate",
        "$Shuffle(size=$size, $seed_=$seed + $which + 1, $epoch_=$epoch)",
        "$Shuffle(size=$size, $seed_=$seed + $which + 1, $epoch_=0)",
        (ROWS,),
    ),
    Mutant(
        "rows of a batch are counted from the process's first",
        "train.data.mixture:RowBatches.batch",
        "rows",
        "range(len(rows))",
        (ROWS,),
    ),
    Mutant(
        "a shuffle that is not walked back into its range",
        "train.data.order:Shuffle.__getitem__",
        "$found >= self.size",
        "False",
        (ROWS,),
    ),
    Mutant(
        "a user's words are learned",
        "text.turns:find_turns",
        '$message.get("role") != $assistant',
        "index == 0",
        (SOURCES,),
    ),
    Mutant(
        "a turn that is written otherwise later passes",
        "text.turns:find_turns",
        "whole[:len($after)] != $after",
        "False",
        (SOURCES,),
    ),
    Mutant(
        "the same file on both sides",
        "train.data.manifest:check_disjoint",
        "$splits != $splits2",
        "False",
        (KEPT,),
    ),
    Mutant(
        "the split depends on the place in the list",
        "train.data.tokenise:_split",
        "$file.sha256",
        "hashlib.sha256(str(id($file)).encode()).hexdigest()",
        (KEPT,),
    ),
    Mutant(
        "another end-of-text token reuses the same tokens",
        "train.data.encoders:ByteEncoder.fingerprint",
        'f"bytes/{$end_of_sequence}"',
        '"bytes"',
        (KEPT,),
    ),
    Mutant(
        "hidden states of the token after",
        "train.data.sources.features:RowsWithHidden.row",
        '$file.get_slice("hidden_states")',
        '$file.get_slice("hidden_states")[:].roll(-1, 0)',
        (FEATURES,),
    ),
    Mutant(
        "prompts are learned as if the target had written them",
        "train.data.regenerated:training_row",
        "[0]",
        "[1]",
        (COMMANDS,),
    ),
)
