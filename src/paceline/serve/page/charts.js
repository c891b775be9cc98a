// Small charts: speed along the text, acceptance by depth, the steps as a strip, and the time of one step.

import { el, milliseconds, percent, plural, rate, svg } from "./dom.js";
import { acceptance, plainRate, speeds } from "./run.js";

const WIDTH = 400;

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((one) => one * power >= value) * power;
}

export function speedChart(run) {
  const found = speeds(run);
  const plain = plainRate(run);
  if (!found.length) return el("p", { class: "empty" }, "Shown while a text is made.");
  const [height, left, right, top, bottom] = [132, 34, 10, 10, 22];
  const most = nice(1.1 * Math.max(...found.map((one) => one.rate), plain?.rate ?? 0, 1e-9));
  const last = Math.max(2, found.at(-1).tokens);
  const x = (tokens) => left + ((WIDTH - left - right) * tokens) / last;
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  const own = found.map((one) => `${x(one.tokens).toFixed(1)} ${y(one.rate).toFixed(1)}`);
  const label = `With drafts ${rate(found.at(-1).rate)} tokens per second` + (plain ? `, plain decoding ${rate(plain.rate)}` : "");
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", class: "chart", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    picture.append(
      svg("path", { d: `M${left} ${y(part * most)}H${WIDTH - right}`, class: "grid" }),
      svg("text", { x: left - 6, y: y(part * most) + 4, "text-anchor": "end", class: "tick" }, rate(part * most || 0).replace("0.0", "0")),
    );
  }
  picture.append(
    svg("text", { x: WIDTH - right, y: height - 4, "text-anchor": "end", class: "tick" }, `${found.at(-1).tokens} tokens`),
    svg("path", { d: `M${own[0]}L${own.join("L")}V${y(0)}H${x(found[0].tokens)}Z`, class: "area" }),
    svg("path", { d: `M${own.join("L")}`, class: "curve", "data-points": found.length }),
  );
  if (plain) picture.append(svg("path", { d: `M${left} ${y(plain.rate)}H${WIDTH - right}`, class: "plain-line", "data-rate": plain.rate }));
  const key = [el("li", { class: "key-own" }, `with drafts ${rate(found.at(-1).rate)}`)];
  if (plain) {
    key.push(el("li", { class: "key-plain" }, `plain ${rate(plain.rate)}, ${plain.measured ? "measured" : "as the server measures it"}`));
  } else {
    key.push(el("li", { class: "key-none" }, "plain decoding is not measured yet"));
  }
  return el("figure", {}, picture, el("ul", { class: "key" }, ...key));
}

export function depthChart(run) {
  const found = acceptance(run);
  if (!found.length) return el("p", { class: "empty" }, "Shown once something is drafted.");
  const widest = Math.max(...found.map((one) => one?.drafted ?? 0));
  const rows = found.map((one, at) => {
    const { drafted, accepted } = one ?? { drafted: 0, accepted: 0 };
    const share = drafted ? accepted / drafted : 0;
    const bar = svg(
      "svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "bar", "aria-hidden": true },
      svg("rect", { width: (100 * drafted) / widest, height: 10, class: "drafted" }),
      svg("rect", { width: (100 * accepted) / widest, height: 10, class: "accepted" }),
    );
    return el(
      "tr", { "data-depth": at + 1, "data-drafted": drafted, "data-accepted": accepted },
      el("th", { scope: "row" }, String(at + 1)), el("td", { class: "wide" }, bar),
      el("td", { class: "number" }, percent(share)), el("td", { class: "counts" }, `${accepted} of ${drafted}`),
    );
  });
  const caption = el("caption", { class: "hidden" }, "Of the steps that drafted a token at a depth, those that accepted it");
  return el("table", { class: "depths" }, caption, el("tbody", {}, ...rows));
}

// A column for each step: accepted tokens and the target's own above the line, rejected ones below.
export function stepStrip(run, classes) {
  if (!run.steps.length) return el("p", { class: "empty" }, "Each step of the text will be a column here: what was accepted above the line, what was rejected below.");
  const up = Math.max(...run.steps.map((step) => step.tokens.length));
  const down = Math.min(12, Math.max(0, ...run.steps.map((step) => step.nodes.length - 1 - step.accepted.length)));
  const size = 8;
  const width = 9;
  const middle = up * size;
  const picture = svg("svg", {
    viewBox: `0 0 ${run.steps.length * width} ${middle + 3 + down * size}`,
    preserveAspectRatio: "none", class: "strip", role: "img",
    "aria-label": `${plural(run.steps.length, "step")}, up to ${plural(up, "token")} in one`,
  });
  run.steps.forEach((step, at) => {
    const column = svg("g", { "data-step": at, class: "column" });
    column.append(svg("rect", { x: at * width, y: 0, width, height: middle + 3 + down * size, class: "ground" }));
    step.tokens.forEach((token, index) => {
      column.append(svg("rect", { x: at * width + 1, y: middle - (index + 1) * size + 1, width: width - 2, height: size - 1.5, class: `cell ${classes(token)}` }));
    });
    const rejected = Math.min(down, step.nodes.length - 1 - step.accepted.length);
    for (let index = 0; index < rejected; index++) {
      column.append(svg("rect", { x: at * width + 1, y: middle + 3 + index * size, width: width - 2, height: size - 1.5, class: "cell lost" }));
    }
    picture.append(column);
  });
  return picture;
}

export function timeBar(step) {
  const parts = [["draft", "Draft"], ["target", "Target"], ["decide", "Decide"], ["rest", "Rest"]];
  const { total } = step.seconds;
  const bar = svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", class: "times", "aria-hidden": true });
  let start = 0;
  for (const [name] of parts) {
    const width = total ? (100 * step.seconds[name]) / total : 0;
    bar.append(svg("rect", { x: start, width, height: 6, class: `time-${name}` }));
    start += width;
  }
  const key = parts.map(([name, shown]) => el("li", { class: `key-${name}` }, `${shown} ${milliseconds(step.seconds[name])}`));
  return el("div", {}, bar, el("ul", { class: "key" }, ...key, el("li", {}, `together ${milliseconds(total)}`)));
}
