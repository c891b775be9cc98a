"""``python -m benchmarks STUDY``: every study is a dataclass, whose fields are its options."""

import logging
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

STUDIES = {
    "blocks-and-text": "benchmarks.blocks_and_text:BlocksAndText",
    "controller": "benchmarks.controller:ControllerStudy",
    "batched": "benchmarks.batched:Batched",
    "drafters": "benchmarks.drafters:DrafterStudy",
    "divergence": "benchmarks.divergence_rate:DivergenceRate",
    "endurance": "benchmarks.endurance:Endurance",
    "exits-and-prophets": "benchmarks.exits_and_prophets:ExitsAndProphets",
    "gpu": "benchmarks.gpu:Gpu",
    "head-trees": "benchmarks.head_trees:HeadTrees",
    "heads": "benchmarks.heads:HeadStudy",
    "inflate": "benchmarks.inflate.command:Inflate",
    "joint-training": "benchmarks.joint_training:JointTraining",
    "lengths": "benchmarks.lengths:Lengths",
    "load": "benchmarks.load:Load",
    "instruction-sets": "benchmarks.instruction_sets:InstructionSets",
    "products": "benchmarks.products:Products",
    "replicas": "benchmarks.replicas:Replicas",
    "resume": "benchmarks.resume:Resume",
    "sampling-cost": "benchmarks.sampling_cost:SamplingCost",
    "scaling": "benchmarks.scaling:Scaling",
    "semantic": "benchmarks.semantic:Semantic",
    "semantic-data": "benchmarks.semantic_data:SemanticData",
    "serving": "benchmarks.serving:Serving",
    "small-targets": "benchmarks.small_targets:SmallTargets",
    "speech": "benchmarks.speech:SpeechStudy",
    "validation": "benchmarks.validation:ValidationStudy",
    "verifier-cost": "benchmarks.verifier_cost:VerifierCost",
    "verifier-ranking": "benchmarks.verifier_ranking:VerifierRanking",
}
OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

app = App(name="python -m benchmarks", help=__doc__, result_action="return_value", version_flags=())
for name, study in STUDIES.items():
    app.command(study, name=name)


def main(arguments: Sequence[str]) -> int:
    """Run a study; the exit code. Errors that users can mend are one line on stderr."""
    try:
        chosen = app(list(arguments), exit_on_error=False, print_error=False)
        return OK if chosen is None else chosen.run()
    except (CycloptsError, ValueError, OSError) as error:
        print(f"python -m benchmarks: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; the file of raw figures keeps what is done: run the same command to go on", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    logging.getLogger("paceline").setLevel(logging.ERROR)  # drafts that do not pay are measured on purpose
    sys.exit(main(sys.argv[1:]))
