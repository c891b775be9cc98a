"""Mutants of drafting from the target's last hidden states, of heads in files, and of what tells targets apart."""

from tests.mutants.mutant import Mutant

PROPHET = "tests/drafters/test_prophet.py"
LINEAR = "tests/drafters/test_linear_prophet.py"
LAYOUT = "tests/heads/test_prophet.py"
FILES = "tests/heads/test_files.py"

MUTANTS = (
    Mutant(
        "prophet: states of the prompt's end for ever",
        "drafters/prophet.py",
        "self.states.advance(tree, outcome, output)",
        "pass",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states one too early",
        "drafters/states.py",
        "last = outcome.num_committed[:, None] + self.index",
        "last = (outcome.num_committed[:, None] - 1).clamp(min=0) + self.index",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states of the draft's end",
        "drafters/states.py",
        "last = outcome.num_committed[:, None] + self.index",
        "last = known.shape[1] - len(self.index) + self.index.expand(len(known), -1)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: states of a prompt off by one",
        "drafters/states.py",
        "at = (admission.known - admission.forked)[:, None] - count + self.index",
        "at = (admission.known - admission.forked)[:, None] - count + self.index - 1",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the prompt's own index where it forked",
        "drafters/states.py",
        "at = (admission.known - admission.forked)[:, None] - count + self.index",
        "at = (admission.known[:, None] - count + self.index).clamp(max=read.shape[1] - 1)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: a short text's first state is repeated",
        "drafters/states.py",
        "fresh = torch.where((at >= 0)[..., None], found, fresh)",
        "fresh = found",
        (PROPHET,),
    ),
    Mutant(
        "prophet: what a fork needs is not read again",
        "drafters/prophet.py",
        "self.num_reread = head.sizes.num_states",
        "self.num_reread = 0",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the root alone begins the cache",
        "drafters/prophet.py",
        "self.begun.truncate(count + 1)",
        "self.begun.truncate(count)",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the cache goes on where the last draft ended",
        "drafters/prophet.py",
        "logits = self.lm(tree, self.empty, logits_for=LogitsFor.LAST, resume=resume).logits",
        "logits = self.lm(tree, self.begun, logits_for=LogitsFor.LAST, resume=resume).logits",
        (PROPHET,),
    ),
    Mutant(
        "prophet: the states' norm is left out",
        "heads/prophet.py",
        "return self.project(self.norm(states))",
        "return self.project(states)",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: the feed-forward never runs",
        "models/blocks.py",
        "        added = self.ffn(self.ffn_norm(x))\n"
        "        return x + (F.dropout(added, dropout) if dropout else added)\n\n\n"
        "class ScaledBlock",
        "        return x\n\n\nclass ScaledBlock",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: trained on the state that gave the token after the root",
        "heads/parts.py",
        "torch.arange(-count, 0, device=roots.device)",
        "torch.arange(1 - count, 1, device=roots.device)",
        (PROPHET, LAYOUT),
    ),
    Mutant(
        "prophet: states of the text before",
        "heads/parts.py",
        "inside &= _at(segment, index) == segment.gather(1, roots)[..., None]",
        "pass",
        (LAYOUT,),
    ),
    Mutant(
        "prophet: positions of another text weigh",
        "heads/parts.py",
        "inside &= _at(segment, position) == segment.gather(1, roots)[..., None]",
        "pass",
        (LAYOUT,),
    ),
    Mutant(
        "linear prophet: every depth by the first matrix",
        "drafters/linear_prophet.py",
        "below = forest.depth[:, start:, None] + 1",
        "below = 0 * forest.depth[:, start:, None]",
        (LINEAR,),
    ),
    Mutant(
        "head files: any target will do",
        "heads/files.py",
        "if not record.fingerprint.matches(own):",
        "if record.fingerprint.sizes != own.sizes:",
        (FILES,),
    ),
    Mutant(
        "head files: written in place",
        "heads/files.py",
        'aside = path.with_name(f".{path.name}.{os.getpid()}")',
        "aside = path",
        (FILES,),
    ),
    Mutant(
        "fingerprint: panels as if they were rows",
        "models/fingerprint.py",
        "return unpack_matrix(panels.detach()[first : first + width], width)[row - first]",
        "return panels.detach()[row]",
        (FILES,),
    ),
    Mutant(
        "fingerprint: integers pass for the matrices",
        "models/fingerprint.py",
        "matrices=None if quantised else _hash(found[MATRICES])",
        "matrices=_hash(found[KEPT] + found[MATRICES])",
        (FILES,),
    ),
)
