// The draft of one step: what was written runs straight along the top, and what was rejected falls below it.

import { el, percent, plural, svg, visible } from "./dom.js";
import { nodeClass, sourceClass } from "./sources.js";
import { depthsOf } from "./run.js";

const HEIGHT = 44; // of a lane
const BOX = 27;
const GAP = 30; // between columns
const LETTER = 7.3;
const MARGIN = 6;
const LONGEST = 18; // letters of a token

const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}\u2026` : text);

// Boxes and lines of `step`, without a document: { boxes, lines, width, height }.
export function layout(step) {
  const depths = depthsOf(step);
  const onPath = new Set([0, ...step.accepted]);
  const own = step.tokens.length > step.accepted.length ? step.tokens.at(-1) : null;
  const children = step.nodes.map(() => []);
  step.nodes.forEach((node, at) => node.parent !== null && children[node.parent].push(at));
  const lanes = [];
  let lane = 0;
  // The path first, then the branches that leave it, the nearest to its end first, so that no line is crossed.
  const put = (node) => {
    lanes[node] = lane;
    const straight = children[node].filter((one) => onPath.has(one));
    const leaving = children[node].filter((one) => !onPath.has(one));
    straight.forEach(put);
    leaving.forEach((one, index) => {
      if (onPath.has(node) || index > 0) lane += 1;
      put(one);
    });
  };
  put(0);
  const end = step.accepted.at(-1) ?? 0;
  const boxes = step.nodes.map((node, at) => ({
    at,
    text: shortened(visible(node.text)),
    depth: depths[at],
    lane: lanes[at],
    parent: node.parent,
    state: at === 0 ? "root" : onPath.has(at) ? "accepted" : "rejected",
    share: node.target_probability,
    node,
  }));
  if (own) {
    const depth = depths[end] + 1;
    boxes.push({
      at: boxes.length,
      text: shortened(visible(own.text || step.tokens.at(-1).text)),
      depth,
      lane: 0,
      parent: end,
      state: own.source,
      share: own.target_probability,
      token: own,
    });
  }
  const widths = [];
  for (const box of boxes) {
    box.width = Math.max(34, Math.round([...box.text].length * LETTER) + 16);
    widths[box.depth] = Math.max(widths[box.depth] ?? 0, box.width);
  }
  const starts = [MARGIN];
  widths.forEach((width, depth) => (starts[depth + 1] = starts[depth] + width + GAP));
  for (const box of boxes) {
    box.x = starts[box.depth];
    box.y = MARGIN + box.lane * HEIGHT;
  }
  const lines = boxes.filter((box) => box.parent !== null).map((box) => ({ from: boxes[box.parent], to: box }));
  return {
    boxes,
    lines,
    width: starts.at(-1) - GAP + MARGIN,
    height: MARGIN * 2 + (Math.max(...boxes.map((box) => box.lane)) + 1) * HEIGHT - 4,
  };
}

function curve({ from, to }) {
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + BOX / 2, to.x, to.y + BOX / 2];
  const middle = x2 - GAP / 2;
  return y1 === y2 ? `M${x1} ${y1}H${x2}` : `M${x1} ${y1}H${middle - 9}C${middle} ${y1} ${middle - 4} ${y2} ${middle + 6} ${y2}H${x2}`;
}

function classOf(box, drafters) {
  if (box.state === "root") return "node root";
  if (box.token) return `node own ${sourceClass(box.token, drafters)}`;
  return `node ${box.state} ${nodeClass(box.node, drafters)}`;
}

export function drawTree(step, drafters) {
  const { boxes, lines, width, height } = layout(step);
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "tree", "aria-label": said(step),
  });
  const order = { rejected: 0 };
  for (const line of [...lines].sort((a, b) => (order[a.to.state] ?? 1) - (order[b.to.state] ?? 1))) {
    picture.append(svg("path", { d: curve(line), class: `line ${line.to.state === "rejected" ? "rejected" : "kept"}` }));
  }
  for (const box of boxes) {
    const middle = box.x + box.width / 2;
    picture.append(svg(
      "g", { class: classOf(box, drafters), "data-node": box.token ? "own" : box.at, "data-state": box.state },
      svg("title", {}, titleOf(box)),
      svg("rect", { x: box.x, y: box.y, width: box.width, height: BOX, rx: 7 }),
      svg("text", { x: middle, y: box.y + BOX / 2 + 4.5, "text-anchor": "middle", class: "label" }, box.text),
      box.state === "root" ? null : svg("text", { x: middle, y: box.y + BOX + 10.5, "text-anchor": "middle", class: "share" }, percent(box.share)),
    ));
  }
  return picture;
}

function titleOf(box) {
  if (box.state === "root") return "the newest token before this step";
  if (box.token) return `${box.text}: chosen by the target, which gives it ${percent(box.share)}`;
  return `${box.text}: drafted by ${box.node.drafter}, ${box.state}; the target gives it ${percent(box.share)}`;
}

// One sentence on a step.
export function said(step) {
  const drafted = step.nodes.length - 1;
  const own = step.tokens.length > step.accepted.length ? step.tokens.at(-1) : null;
  const added = own ? `\u201c${visible(own.text)}\u201d` : "";
  if (!drafted) return `Nothing was drafted (${step.no_draft}); the target wrote ${added}.`;
  const names = [...new Set(step.nodes.slice(1).map((node) => node.drafter))];
  const who = `The ${names.join(" and ")} ${names.length > 1 ? "drafters" : "drafter"}`;
  const kept = step.accepted.length;
  const start = `${who} proposed ${plural(drafted, "token")}; the target accepted ${kept === drafted ? (kept === 1 ? "it" : `all ${kept}`) : kept || "none"}`;
  if (!own) return `${start}, and the text ends there.`;
  return own.source === "bonus" ? `${start} and added ${added}.` : `${start} and wrote ${added} instead of the next.`;
}

export function nodeTable(step) {
  const { boxes } = layout(step);
  const rows = boxes.map((box) => {
    const draft = box.node?.draft_probability;
    const cells = [
      visible(box.token?.text ?? box.node.text),
      box.state === "root" ? "\u2013" : String(box.depth),
      box.token ? "the target" : box.node.drafter ?? "\u2013",
      box.state === "root" ? "before the step" : box.state,
      percent(box.share),
      percent(draft),
    ];
    return el("tr", { "data-state": box.state }, ...cells.map((cell, at) => el(at ? "td" : "th", at ? {} : { scope: "row" }, cell)));
  });
  const heads = ["Token", "Depth", "From", "What became of it", "Target", "Drafter"];
  return el(
    "table", {},
    el("caption", { class: "hidden" }, "The nodes of the draft tree, and the probabilities that target and drafter give them"),
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, ...rows),
  );
}
