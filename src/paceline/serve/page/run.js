// A run: what was asked, the steps that the server told, and what follows from them. A saved file is this object.

export const FORMAT = "paceline-run";
export const VERSION = 1;
const MOST_STEPS = 100000;
const WINDOW = 8; // steps over which a speed is taken

export function newRun({ kind, prompt, messages, request, about }) {
  return {
    format: FORMAT,
    version: VERSION,
    created: new Date().toISOString(),
    model: about.model,
    drafters: about.drafters,
    kind,
    prompt: prompt ?? null,
    messages: messages ?? null,
    request,
    text: "",
    steps: [],
    finish_reason: null,
    plain: null,
  };
}

// Adds what one event of a stream says; true where it said something of the text.
export function addChunk(run, chunk) {
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const text = choice.text ?? choice.delta?.content ?? "";
  run.text += text;
  if (choice.steps) run.steps.push(...choice.steps);
  if (choice.finish_reason) run.finish_reason = choice.finish_reason;
  return Boolean(text || choice.steps);
}

export function tokensOf(run) {
  return run.steps.flatMap((step, at) => step.tokens.map((token, index) => ({ ...token, at, depth: index + 1, step })));
}

export const secondsOf = (run) => run.steps.reduce((sum, step) => sum + step.seconds.total, 0);

// Depth of each node: 0 of the root.
export function depthsOf(step) {
  const depths = [];
  for (const node of step.nodes) depths.push(node.parent === null ? 0 : depths[node.parent] + 1);
  return depths;
}

// For each depth: in how many steps something was drafted there, and in how many it was accepted.
export function acceptance(run) {
  const found = [];
  for (const step of run.steps) {
    for (const depth of new Set(depthsOf(step).filter((one) => one > 0))) {
      found[depth - 1] ??= { drafted: 0, accepted: 0 };
      found[depth - 1].drafted += 1;
      found[depth - 1].accepted += step.accepted.length >= depth ? 1 : 0;
    }
  }
  return found;
}

// Tokens per second that plain decoding would give: measured for this very request, or by the server on the way.
export function plainRate(run) {
  if (run.plain) return { rate: run.plain.tokens / run.plain.seconds, measured: true };
  for (let at = run.steps.length - 1; at >= 0; at--) {
    const { plain_tokens_per_second: found, outputs } = run.steps[at];
    if (found) return { rate: found / Math.max(1, outputs), measured: false };
  }
  return null;
}

// After each step: the tokens so far, and the speed of the last steps, by the engine's clock.
export function speeds(run) {
  let tokens = 0;
  return run.steps.map((step, at) => {
    tokens += step.tokens.length;
    const last = run.steps.slice(Math.max(0, at - WINDOW + 1), at + 1);
    const gained = last.reduce((sum, one) => sum + one.tokens.length, 0);
    const seconds = last.reduce((sum, one) => sum + one.seconds.total, 0);
    return { tokens, rate: seconds > 0 ? gained / seconds : 0 };
  });
}

export function figures(run) {
  const tokens = run.steps.reduce((sum, step) => sum + step.tokens.length, 0);
  const depths = acceptance(run);
  const drafted = depths.reduce((sum, one) => sum + one.drafted, 0);
  const accepted = depths.reduce((sum, one) => sum + one.accepted, 0);
  const seconds = secondsOf(run);
  return {
    tokens,
    steps: run.steps.length,
    perStep: run.steps.length ? tokens / run.steps.length : null,
    acceptance: drafted ? accepted / drafted : null,
    rate: seconds > 0 ? tokens / seconds : null,
    plain: plainRate(run),
  };
}

// What a file holds, or an error that says what is wrong with it.
export function readRun(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`this file is no saved run: it is not JSON (${error.message})`);
  }
  const need = (holds, what) => {
    if (!holds) throw new Error(`this file is no saved run: ${what}`);
  };
  const isText = (value) => typeof value === "string";
  const isCount = (value) => Number.isInteger(value) && value >= 0;
  const isShare = (value) => value === null || (Number.isFinite(value) && value >= 0 && value <= 1.0001);
  need(found && found.format === FORMAT, `"format" is not "${FORMAT}"`);
  need(found.version === VERSION, `it has version ${found.version}, and this page reads version ${VERSION}`);
  need(isText(found.model) && isText(found.text), '"model" and "text" are texts');
  need(Array.isArray(found.drafters) && found.drafters.every(isText), '"drafters" is a list of texts');
  need(found.kind === "completion" || found.kind === "chat", '"kind" is "completion" or "chat"');
  need(found.prompt === null || isText(found.prompt), '"prompt" is a text');
  const isMessage = (one) => one && isText(one.role) && isText(one.content);
  need(found.messages === null || (Array.isArray(found.messages) && found.messages.every(isMessage)), '"messages" is a chat');
  need(found.plain === null || (found.plain.seconds > 0 && isCount(found.plain.tokens)), '"plain" has "seconds" and "tokens"');
  need(Array.isArray(found.steps) && found.steps.length <= MOST_STEPS, `"steps" is a list of at most ${MOST_STEPS}`);
  found.steps.forEach((step, at) => {
    const where = `step ${at + 1}`;
    need(step && Array.isArray(step.tokens) && Array.isArray(step.nodes) && Array.isArray(step.accepted), `${where} lacks a list`);
    const sized = isCount(step.step) && step.seconds && ["draft", "target", "decide", "rest", "total"].every((name) => step.seconds[name] >= 0);
    need(sized && isCount(step.outputs), `${where} has no number, no times or no outputs`);
    need(step.plain_tokens_per_second === null || step.plain_tokens_per_second > 0, `${where}: "plain_tokens_per_second"`);
    need(step.nodes.length > 0, `${where} has no root`);
    step.nodes.forEach((node, index) => {
      const parent = index === 0 ? node.parent === null : isCount(node.parent) && node.parent < index;
      const shares = [node.draft_probability, node.target_probability, node.sampled_probability].every(isShare);
      need(isText(node.text) && isCount(node.id) && parent && shares, `${where}, node ${index} is not of a tree`);
      need(node.drafter === null || isText(node.drafter), `${where}, node ${index}: "drafter"`);
    });
    need(step.accepted.every((node) => isCount(node) && node < step.nodes.length), `${where} accepts a node that is not there`);
    step.tokens.forEach((token) => {
      const known = ["drafted", "corrected", "bonus", "plain"].includes(token.source);
      const shares = isShare(token.target_probability) && isShare(token.sampled_probability);
      need(isText(token.text) && isCount(token.id) && known && shares, `${where} has a token that is none`);
      need(token.drafter === null || isText(token.drafter), `${where}: the "drafter" of a token`);
    });
  });
  return found;
}
