"""Mutants of the rules for chains, of matching rules, and of noise and laws."""

from tests.mutants.mutant import CONFORMANCE, LAWS, NOISE, RULE, SAMPLING, TREES, Mutant

MUTANTS = (
    Mutant(
        "share draft and accept noise",
        "verifiers/rejection.py",
        "Stream.ACCEPT",
        "Stream.DRAFT",
        (LAWS, NOISE),
    ),
    Mutant(
        "accept with >=",
        "core/noise.py",
        "return u * denominator < numerator",
        "return u * denominator <= numerator",
        (NOISE,),
    ),
    Mutant(
        "residual from p",
        "verifiers/rejection.py",
        "residual = (law - refused).clamp(min=0)",
        "residual = law",
        (LAWS,),
    ),
    Mutant(
        "residual subtracts q at the refused token alone",
        "verifiers/rejection.py",
        "residual = (law - refused).clamp(min=0)",
        "residual = (law - refused * (refused == refused.amax(-1, keepdim=True))).clamp(min=0)",
        (LAWS,),
    ),
    Mutant(
        "un-warped bonus",
        "verifiers/rejection.py",
        "law = p.gather(1, row)",
        "law = torch.where((leaf == tree.valid.sum(-1) - 1)[:, None, None], logits.softmax(-1), p).gather(1, row)",
        (LAWS,),
    ),
    Mutant(
        "block: break at the first failure",
        "verifiers/block.py",
        "leaf = torch.where(passes & tree.valid[:, 1:], tree.depth[:, 1:], 0)",
        "leaf = torch.where((passes & tree.valid[:, 1:]).long().cumprod(-1) > 0, tree.depth[:, 1:], 0)",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: the token rule's residual",
        "verifiers/block.py",
        "law = rest.gather(1, row)",
        "law = (scores.softmax(-1) - q).clamp(min=0).gather(1, row)",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: the token rule's test",
        "verifiers/block.py",
        "weights.append((weights[i] * ratio[:, i]).clamp(max=1))",
        "weights.append(ratio[:, i].clamp(max=1))",
        (RULE.format("block"),),
    ),
    Mutant(
        "block: un-warped bonus",
        "verifiers/block.py",
        "scores = batch.scores(logits)  # [B, N, V]",
        "scores = torch.where((tree.depth < tree.valid.sum(-1, keepdim=True) - 1)[..., None], "
        "batch.scores(logits), logits)",
        (LAWS,),
    ),
    Mutant(
        "matching draws with noise of its own",
        "verifiers/match.py",
        "batch.picks(tree, logits)",
        "batch.pick(logits, batch.length[:, None] + 10 + tree.depth)",
        (RULE.format("match"),),
    ),
    Mutant(
        "a lenient rule passes for lossless",
        "verifiers/lossy_lenient.py",
        "lossless: ClassVar[bool] = False",
        "lossless: ClassVar[bool] = True",
        (RULE.format("lossy_lenient"),),
    ),
    Mutant(
        "the lenience reaches the residual",
        "verifiers/lossy_lenient.py",
        "rest = (law - q.gather(1, row)).clamp(min=0)",
        "rest = (law - self.lenience * q.gather(1, row)).clamp(min=0)",
        (RULE.format("lossy_lenient"),),
    ),
    Mutant(
        "typical: the first path instead of the likeliest",
        "verifiers/lossy_typical.py",
        "score = (tree.ancestors * score[:, None, :]).sum(-1)",
        "score = (tree.ancestors * score[:, None, :]).sum(-1) * 0",
        (RULE.format("lossy_typical"),),
    ),
    Mutant(
        "typical: the larger of both bounds",
        "verifiers/lossy_typical.py",
        ".clamp(max=self.epsilon)",
        ".clamp(min=self.epsilon)",
        (RULE.format("lossy_typical"),),
    ),
    Mutant(
        "finishers in reverse",
        "core/noise.py",
        "topk(count, dim=-1)",
        "topk(count, dim=-1, largest=False)",
        (NOISE,),
    ),
    Mutant(
        "coupled: a tree takes noise of positions further on",
        "core/batch.py",
        "levels = self.length[:, None] + torch.arange(tree.max_depth + 1, device=self.device)",
        "levels = self.length[:, None] + torch.arange(tree.max_depth + 1, device=self.device) * 2",
        (TREES,),
    ),
    Mutant(
        "the token after a draft is the one after the root",
        "verifiers/drafted.py",
        "next=picks.gather(1, leaf[:, None])[:, 0]",
        "next=(picks * 0 + picks[:, :1]).gather(1, leaf[:, None])[:, 0]",
        (CONFORMANCE,),
    ),
    Mutant(
        "share accept and residual noise",
        "verifiers/rejection.py",
        "Stream.RESIDUAL, lane=at)",
        "Stream.ACCEPT, lane=at + 1)",
        (LAWS, NOISE),
    ),
    Mutant(
        "a draft of the likeliest token passes without a test",
        "verifiers/rejection.py",
        "        leaf, path, length",
        "        keep |= tree.tokens[:, 1:] == p[:, :-1].argmax(-1)\n        leaf, path, length",
        (LAWS,),
    ),
    Mutant(
        "a draft of low probability is not submitted",
        "verifiers/rejection.py",
        "        q = child_laws",
        "        low = tree.laws is not None and tree.chain\n"
        "        low = low and (tree.laws.gather(-1, tree.tokens[:, 1:, None])[..., 0] > 0.3).long().cumprod(-1) > 0\n"
        "        if low is not False:\n"
        "            tree = __import__('dataclasses').replace(\n"
        "                tree, valid=tree.valid & torch.nn.functional.pad(low, (1, 0), value=True)\n"
        "            )\n"
        "        q = child_laws",
        (LAWS,),
    ),
    Mutant(
        "uniforms in half precision",
        "core/noise.py",
        "u = (self.bits(key, 1)[..., 0].to(numerator.dtype) * 2.0**-32)",
        "u = (self.bits(key, 1)[..., 0].to(numerator.dtype) * 2.0**-32).to(torch.bfloat16).to(numerator.dtype)",
        (NOISE,),
    ),
    Mutant(
        "a draw may meet a token without weight",
        "core/noise.py",
        "goal, right=True)",
        "goal, right=False)",
        (NOISE,),
    ),
    Mutant(
        "races in half precision",
        "core/noise.py",
        "self.uniforms(key, count, dtype).neg_()",
        "self.uniforms(key, count, dtype).to(torch.bfloat16).to(dtype).neg_()",
        (NOISE,),
    ),
    Mutant(
        "laws in half precision",
        "core/sampling.py",
        "scores = logits.to(torch.promote_types(logits.dtype, torch.float32))",
        "scores = logits.to(torch.bfloat16).float()",
        (SAMPLING,),
    ),
)
