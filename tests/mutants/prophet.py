"""Mutants of drafting from the target's last hidden states, of head files, and of fingerprints."""

from tests.mutants.mutant import Mutant

PROPHET = "tests/drafters/test_prophet.py"
LINEAR = "tests/drafters/test_linear_prophet.py"
LAYOUT = "tests/draft_heads/test_prophet.py"
FILES = "tests/draft_heads/test_files.py"

MUTANTS = (
    Mutant(
        "prophet: states of the prompt's end in every step",
        "drafters.prophet:ProphetDrafter.observe",
        "$advance($tree, $outcome, $output)",
        "pass",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states one too early",
        "drafters.last_states:LastHiddenStates.update",
        "$num_committed[:, None]",
        "($num_committed[:, None] - 1).clamp(min=0)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states of the draft's end",
        "drafters.last_states:LastHiddenStates.update",
        "$num_committed[:, None] + self.index",
        "states.shape[1] - len(self.index) + self.index.expand(len(states), -1)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states of a prompt off by one",
        "drafters.last_states:LastHiddenStates.admit",
        "($known - $forked)[:, None] - $count + self.index",
        "($known - $forked)[:, None] - $count + self.index - 1",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the prompt's own index where it forked",
        "drafters.last_states:LastHiddenStates.admit",
        "($known - $forked)[:, None] - $count + self.index",
        "($known[:, None] - $count + self.index).clamp(max=read.shape[1] - 1)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: a short sequence's first state is repeated",
        "drafters.last_states:LastHiddenStates.admit",
        "torch.where(($at >= 0)[..., None], $found, $fresh)",
        "$found",
        (PROPHET,),
    ),
    Mutant(
        "prophet: what a fork needs is not read again",
        "drafters.prophet:ProphetDrafter.__init__",
        "$sizes.num_states",
        "0",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the root alone begins the cache",
        "drafters.prophet:ProphetDrafter.allocate",
        "$truncate($count + 1)",
        "$truncate($count)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the cache goes on where the last draft ended",
        "drafters.prophet:ProphetDrafter.read_root",
        "self.empty",
        "self.rooted",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the states' norm is left out",
        "draft_heads.prophet:ProphetHead.embed_states",
        "self.norm($states)",
        "$states",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: the feed-forward never runs",
        "models.native.blocks:Block.forward",
        "$added = $ffn($ffn_norm($x))\nreturn $x + (F.dropout($added, $dropout) if $dropout else $added)",
        "return $x",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: trained on the state that gave the token after the root",
        "draft_heads.layers:gather_preceding",
        "torch.arange(-$count, 0, device=$roots.device)",
        "torch.arange(1 - $count, 1, device=$roots.device)",
        (PROPHET, LAYOUT),
    ),
    Mutant(
        "prophet: states of the previous sequence",
        "draft_heads.layers:gather_preceding",
        "$inside &= $at($segment, $index) == $segment.gather(1, $roots)[..., None]",
        "pass",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: positions of another sequence have weight",
        "draft_heads.layers:anchor_positions",
        "$inside &= $at($segment, $position) == $segment.gather(1, $roots)[..., None]",
        "pass",
        (LAYOUT,),
    ),
    Mutant(
        "linear prophet: every depth by the first matrix",
        "drafters.linear_prophet:LinearProphetDrafter.score_nodes",
        "$depth[:, $start:, None] + 1",
        "0 * $depth[:, $start:, None]",
        (LINEAR,),
    ),
    Mutant(
        "head files: any target will do",
        "draft_heads.files:load_head",
        "not $matches($own)",
        "record.fingerprint.sizes != $own.sizes",
        (FILES,),
    ),
    Mutant(
        "head files: written in place",
        "draft_heads.files:_replace",
        '$path.with_name(f".{$name}.{os.getpid()}")',
        "$path",
        (FILES,),
    ),
    Mutant(
        "fingerprint: packed weights are read as rows",
        "models.fingerprint:_row_of_panels",
        "$from_packed($packed.detach()[$first:$first + $width], $width)[$row - $first]",
        "$packed.detach()[$row]",
        (FILES,),
    ),
    Mutant(
        "fingerprint: quantized weights pass for the original ones",
        "models.fingerprint:fingerprint",
        "None if $quantised else $hash($found[$matrices])",
        "$hash($found[KEPT] + $found[$matrices])",
        (FILES,),
    ),
)
