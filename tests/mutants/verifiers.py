"""Mutants of the verifiers of chains, of matching verifiers, and of noise and distributions."""

from tests.mutants.mutant import (
    BLOCK,
    CONFORMANCE,
    DISTRIBUTIONS,
    LOSSY_LENIENT,
    LOSSY_TYPICAL,
    MATCH,
    NOISE,
    SAMPLING,
    TREES,
    Mutant,
)

MUTANTS = (
    Mutant(
        "share draft and accept noise",
        "verifiers.rejection:Rejection.__call__",
        "$key($position[:, :-1], $accept, $node_=$node)",
        "$key($position[:, :-1], Stream.DRAFT, $node_=$node)",
        (DISTRIBUTIONS, NOISE),
    ),
    Mutant(
        "accept with >=",
        "core.noise:Philox.coin",
        "$u * $denominator < $numerator",
        "$u * $denominator <= $numerator",
        (NOISE,),
    ),
    Mutant(
        "residual from p",
        "verifiers.rejection:Rejection.__call__",
        "($probs - $refused).clamp(min=0)",
        "$probs",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "residual subtracts q at the refused token alone",
        "verifiers.rejection:Rejection.__call__",
        "$probs - $refused",
        "$probs - $refused * ($refused == $refused.amax(-1, keepdim=True))",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "un-warped bonus",
        "verifiers.rejection:Rejection.__call__",
        "p.gather",
        "torch.where((leaf == tree.valid.sum(-1) - 1)[:, None, None], scores.logits.softmax(-1), p).gather",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "block: break at the first failure",
        "verifiers.block:Block.__call__",
        "$passes & $valid[:, 1:]",
        "($passes & $valid[:, 1:]).long().cumprod(-1) > 0",
        (BLOCK,),
    ),
    Mutant(
        "block: the residual of token-level rejection",
        "verifiers.block:Block.__call__",
        "$probs = $rest.gather(1, $row)",
        "$probs = (warped.softmax(-1) - q).clamp(min=0).gather(1, $row)",
        (BLOCK,),
    ),
    Mutant(
        "block: the test of token-level rejection",
        "verifiers.block:Block.__call__",
        "$weights[$i] * $ratio[:, $i]",
        "$ratio[:, $i]",
        (BLOCK,),
    ),
    Mutant(
        "block: un-warped bonus",
        "verifiers.block:Block.__call__",
        "$warp(scores.logits)",
        "torch.where((tree.depth < tree.valid.sum(-1, keepdim=True) - 1)[..., None], $warp(scores.logits), "
        "scores.logits)",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "matching draws with noise of its own",
        "verifiers.match:Match.__call__",
        "$follow_picks($tree, $picks($tree, $logits))",
        "$follow_picks($tree, batch.pick($logits, batch.length[:, None] + 10 + $tree.depth))",
        (MATCH,),
    ),
    Mutant(
        "a lenient verifier claims to be lossless",
        "verifiers.lossy_lenient:LossyLenient",
        "lossless: $ClassVar[bool] = False",
        "lossless: $ClassVar[bool] = True",
        (LOSSY_LENIENT,),
    ),
    Mutant(
        "the lenience reaches the residual",
        "verifiers.lossy_lenient:LossyLenient.__call__",
        "$probs - $q.gather(1, $row)",
        "$probs - self.lenience * $q.gather(1, $row)",
        (LOSSY_LENIENT,),
    ),
    Mutant(
        "typical: the first path instead of the likeliest",
        "verifiers.lossy_typical:LossyTypical.__call__",
        "($ancestors * $score[:, None, :]).sum(-1)",
        "($ancestors * $score[:, None, :]).sum(-1) * 0",
        (LOSSY_TYPICAL,),
    ),
    Mutant(
        "typical: the larger of both bounds",
        "verifiers.lossy_typical:LossyTypical.__call__",
        "($delta * torch.exp(torch.xlogy($probs, $probs).sum(-1))).clamp(max=$epsilon)",
        "($delta * torch.exp(torch.xlogy($probs, $probs).sum(-1))).clamp(min=$epsilon)",
        (LOSSY_TYPICAL,),
    ),
    Mutant(
        "ordered draws in reverse",
        "core.noise:Philox.order",
        "$choose($scores, $key).topk($count, dim=-1)",
        "$choose($scores, $key).topk($count, dim=-1, largest=False)",
        (NOISE,),
    ),
    Mutant(
        "coupled: a tree uses the noise of later positions",
        "core.ops:TensorOps.picks",
        "torch.arange($max_depth + 1, device=$device)",
        "torch.arange($max_depth + 1, device=$device) * 2",
        (TREES,),
    ),
    Mutant(
        "the token after a draft is the one after the root",
        "verifiers.draft_probs:follow_picks",
        "$picks.gather(1, $leaf[:, None])",
        "($picks * 0 + $picks[:, :1]).gather(1, $leaf[:, None])",
        (CONFORMANCE,),
    ),
    Mutant(
        "share accept and residual noise",
        "verifiers.rejection:Rejection.__call__",
        "$key($position.gather(1, $at), $residual, $node=$at)",
        "$key($position.gather(1, $at), Stream.ACCEPT, $node=$at + 1)",
        (DISTRIBUTIONS, NOISE),
    ),
    Mutant(
        "a draft of the likeliest token passes without a test",
        "verifiers.rejection:Rejection.__call__",
        "$leaf, $path, $length = $follow($tree, torch.nn.functional.pad($keep, (1, 0)))",
        "$keep |= $tree.tokens[:, 1:] == p[:, :-1].argmax(-1)\n"
        "$leaf, $path, $length = $follow($tree, torch.nn.functional.pad($keep, (1, 0)))",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "a draft of low probability is not submitted",
        "verifiers.rejection:Rejection.__call__",
        "$p = $scores($logits).softmax(-1)",
        "$p = $scores($logits).softmax(-1)\n"
        "low = tree.probs is not None and tree.chain\n"
        "low = low and (tree.probs.gather(-1, tree.tokens[:, 1:, None])[..., 0] > 0.3).long().cumprod(-1) > 0\n"
        "if low is not False:\n"
        '    tree = __import__("dataclasses").replace(tree, valid=tree.valid & torch.nn.functional.pad(low, (1, 0), '
        "value=True))",
        (DISTRIBUTIONS,),
    ),
    Mutant(
        "uniforms in half precision",
        "core.noise:Philox.coin",
        "$bits($key, 1)[..., 0].to($numerator.dtype) * 2.0 ** (-32)",
        "($bits($key, 1)[..., 0].to($numerator.dtype) * 2.0 ** (-32)).to(torch.bfloat16).to($numerator.dtype)",
        (NOISE,),
    ),
    Mutant(
        "a draw may meet a token without weight",
        "core.noise:Philox.draw",
        "True",
        "False",
        (NOISE,),
    ),
    Mutant(
        "exponential races in half precision",
        "core.noise:Philox._times",
        "$uniforms($key, $count, $dtype)",
        "$uniforms($key, $count, $dtype).to(torch.bfloat16).to($dtype)",
        (NOISE,),
    ),
    Mutant(
        "distributions in half precision",
        "core.sampling:SamplingState.warp",
        "$logits.to(torch.promote_types($logits.dtype, torch.float32))",
        "$logits.to(torch.bfloat16).float()",
        (SAMPLING,),
    ),
)
