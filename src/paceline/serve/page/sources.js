// Who chose a token: the names, colours and lines that the text, the tree and the legend share.

export const MEANINGS = {
  drafted: "drafted and accepted",
  corrected: "the target\u2019s correction",
  bonus: "the target\u2019s bonus after a whole draft",
  plain: "the target, without a draft",
};

const COLOURS = 4; // of drafters, in the stylesheet

// The class of a token: the drafter that proposed it, by its place among the run's drafters, or what the target did.
export function sourceClass(token, drafters) {
  if (token.source !== "drafted") return `by-${token.source}`;
  const place = Math.max(0, drafters.indexOf(token.drafter));
  return `by-draft-${place % COLOURS}`;
}

export function nodeClass(node, drafters) {
  return sourceClass({ source: "drafted", drafter: node.drafter }, drafters);
}

export function chooser(token) {
  if (token.source === "drafted") return `${token.drafter}, accepted by the target`;
  if (token.source === "corrected") return "the target, in place of a rejected draft";
  if (token.source === "bonus") return "the target, after an accepted draft";
  return "the target, without a draft";
}
