// A run's text, token by token: coloured by who chose it, with what is known of each on hover, tap and arrow keys.

import { $, el, percent, plural, visible } from "./dom.js";
import { chooser, sourceClass } from "./sources.js";

export class Answer {
  constructor(run, { onStep, onSelect }) {
    this.run = run;
    this.spans = []; // of each token: { span, token, at, depth, step }
    this.plain = null; // a node for text that came without steps
    this.element = el("div", { class: "answer", role: "group", "aria-label": "Answer, token by token" });
    this.onStep = onStep;
    this.onSelect = onSelect;
    this.numSteps = 0;
    this.element.addEventListener("pointerover", (event) => this.point(event));
    this.element.addEventListener("pointerleave", () => hideTooltip());
    this.element.addEventListener("click", (event) => this.choose(event));
    this.element.addEventListener("focusin", (event) => this.focused(event));
    this.element.addEventListener("focusout", () => hideTooltip());
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.update();
  }

  // Adds what the run has gained.
  update() {
    const { steps, drafters, text } = this.run;
    if (!steps.length && text) {
      this.plain ??= this.element.appendChild(el("span", { class: "token by-plain" }));
      this.plain.textContent = text;
    }
    for (let at = this.numSteps; at < steps.length; at++) {
      steps[at].tokens.forEach((token, index) => {
        const number = this.spans.length;
        const span = el("span", {
          class: `token ${sourceClass(token, drafters)}`,
          "data-token": number,
          tabindex: number ? -1 : 0,
        }, token.text);
        this.spans.push({ span, token, at, depth: index + 1, step: steps[at] });
        this.element.append(span);
      });
    }
    this.numSteps = steps.length;
  }

  // Marks the tokens of step `at`; later ones fade while the replay stands before the end.
  show(at, { live }) {
    for (const entry of this.spans) {
      entry.span.classList.toggle("now", !live && entry.at === at);
      entry.span.classList.toggle("later", !live && entry.at > at);
    }
  }

  entryOf(event) {
    const span = event.target.closest?.("[data-token]");
    return span ? this.spans[Number(span.dataset.token)] : null;
  }

  point(event) {
    const entry = this.entryOf(event);
    if (entry) showTooltip(entry);
    else hideTooltip();
  }

  choose(event) {
    this.onSelect(this);
    const entry = this.entryOf(event);
    if (!entry) return;
    this.move(entry);
    this.onStep(entry.at);
  }

  focused(event) {
    const entry = this.entryOf(event);
    if (entry) showTooltip(entry);
  }

  move(entry) {
    for (const one of this.element.querySelectorAll('[tabindex="0"]')) one.tabIndex = -1;
    entry.span.tabIndex = 0;
    entry.span.focus({ preventScroll: false });
  }

  key(event) {
    const entry = this.entryOf(event);
    if (!entry) return;
    const number = Number(entry.span.dataset.token);
    const step = this.spans.findIndex((one) => one.at === entry.at + 1);
    const before = this.spans.findIndex((one) => one.at === entry.at - 1);
    const to = {
      ArrowRight: number + 1,
      ArrowLeft: number - 1,
      ArrowDown: step,
      ArrowUp: before,
      Home: 0,
      End: this.spans.length - 1,
    }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      this.onSelect(this);
      this.onStep(entry.at);
    } else if (event.key === "Escape") {
      hideTooltip();
    } else if (to !== undefined) {
      if (this.spans[to]) this.move(this.spans[to]);
    } else {
      return;
    }
    event.preventDefault();
  }
}

function detailsOf({ token, at, depth, step }) {
  const rows = [
    ["Chosen by", chooser(token)],
    ["Step", `${at + 1}, ${token.source === "drafted" ? `draft depth ${depth}` : `place ${depth} of the step`}`],
    ["Target\u2019s probability", percent(token.target_probability)],
  ];
  const { sampled_probability: sampled } = token;
  if (sampled !== null && Math.abs(sampled - token.target_probability) > 0.0005) {
    rows.push(["As it is sampled", percent(sampled)]);
  }
  const drafted = token.node === null ? null : step.nodes[token.node]?.draft_probability;
  if (drafted !== null && drafted !== undefined) rows.push(["Drafter\u2019s probability", percent(drafted)]);
  rows.push(["Token", `${token.id}`]);
  return rows;
}

let described = null;

export function showTooltip(entry) {
  const tooltip = $("tooltip");
  const rows = detailsOf(entry);
  tooltip.replaceChildren(
    el("p", { class: `title ${entry.span.className}` }, visible(entry.token.text)),
    el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  );
  tooltip.hidden = false;
  described?.removeAttribute("aria-describedby");
  described = entry.span;
  described.setAttribute("aria-describedby", "tooltip");
  placeTooltip();
}

// Beside its token, wherever that has been scrolled to.
export function placeTooltip() {
  if (described) place($("tooltip"), described.getClientRects()[0] ?? described.getBoundingClientRect());
}

function place(tooltip, box) {
  const { innerWidth: width, innerHeight: height } = window;
  const own = tooltip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left), width - own.width - 8);
  const below = box.bottom + 8 + own.height < height;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - own.height - 8)}px`;
}

export function hideTooltip() {
  $("tooltip").hidden = true;
  described?.removeAttribute("aria-describedby");
  described = null;
}

// What the colours mean, for what occurs in a run.
export function legend(run, about) {
  const drafters = run?.drafters ?? about?.drafters ?? [];
  const entries = drafters.map((name) => [{ source: "drafted", drafter: name }, `drafted by ${name}`]);
  entries.push([{ source: "corrected" }, "the target\u2019s correction"]);
  entries.push([{ source: "bonus" }, "the target\u2019s bonus after a whole draft"]);
  entries.push([{ source: "plain" }, "the target, no draft"]);
  const count = (token) => (run ? run.steps : []).reduce((sum, step) => sum + step.tokens.filter((one) =>
    one.source === token.source && (token.source !== "drafted" || one.drafter === token.drafter)).length, 0);
  return entries.map(([token, meaning]) => el(
    "li", {},
    el("span", { class: `token ${sourceClass(token, drafters)}` }, meaning),
    run?.steps.length ? el("span", { class: "count", "aria-label": plural(count(token), "token") }, String(count(token))) : null,
  ));
}
