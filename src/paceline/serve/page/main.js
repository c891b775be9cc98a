// The page: one conversation, the run that is looked at, and what is made of both.

import { $, el, percent, plural, rate } from "./dom.js";
import { addChunk, figures, newRun } from "./run.js";
import { askAbout, stream } from "./server.js";
import { depthChart, speedChart } from "./charts.js";
import { Answer, hideTooltip, legend, placeTooltip } from "./answer.js";
import { Replay } from "./replay.js";
import { mode, options, prepare, showMode, systemPrompt } from "./form.js";
import { embedded, exportRun, openRun, saveRun } from "./files.js";

const THEMES = ["auto", "light", "dark"];

const state = { theme: "auto", about: null, turns: [], shown: null, busy: null };

const replay = new Replay((at, how) => state.shown?.show(at, how));

function say(text) {
  $("status").textContent = text;
}

function warn(error) {
  $("alert").textContent = error === null ? "" : error.message;
  $("alert").hidden = error === null;
}

const handlers = {
  onStep: (at) => replay.go(at),
  onSelect: (answer) => answer !== state.shown && select(answer),
};

// Looks at the run of `answer`.
function select(answer) {
  state.shown?.show(-1, { live: true });
  state.shown = answer;
  replay.open(answer?.run ?? null);
  drawCharts();
}

function drawCharts() {
  const run = state.shown?.run ?? null;
  const found = run ? figures(run) : null;
  $("speed").replaceChildren(speedChart(run ?? { steps: [] }));
  $("depths").replaceChildren(depthChart(run ?? { steps: [] }));
  $("legend").replaceChildren(...legend(run, state.about));
  const gain = found?.rate && found.plain ? found.rate / found.plain.rate : null;
  const shown = [
    ["tokens per step", found?.perStep ? found.perStep.toFixed(2) : "\u2013"],
    ["acceptance rate", percent(found?.acceptance ?? null)],
    ["tokens a second", found?.rate ? rate(found.rate) : "\u2013"],
    ["plain decoding\u2019s speed", gain ? `${gain.toFixed(2)}\u00d7` : "\u2013"],
  ];
  $("figures").replaceChildren(...shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  const idle = !state.busy && Boolean(run);
  $("save").disabled = !idle;
  $("export").disabled = !idle || !state.about;
  $("plain").disabled = !idle || !state.about?.return_steps || !run.steps.length || !run.request.speculative_config?.num_speculative_tokens;
}

let planned = false;
function drawSoon(answer) {
  if (planned) return;
  planned = true;
  requestAnimationFrame(() => {
    planned = false;
    const box = $("conversation");
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    answer.update();
    if (follows) box.scrollTop = box.scrollHeight;
    if (state.shown === answer) {
      replay.update();
      drawCharts();
    }
  });
}

function addTurn(role, content) {
  const name = { system: "System", user: "You", prompt: "Prompt", reply: state.about?.model ?? "Answer" }[role];
  $("conversation").append(el("article", { class: `turn ${role}` }, el("h2", {}, name), content));
  content.scrollIntoView({ block: "nearest" });
}

function empty() {
  state.turns = [];
  $("conversation").replaceChildren();
  select(null);
}

function showRun(run) {
  const answer = new Answer(run, handlers);
  addTurn("reply", answer.element);
  select(answer);
  return answer;
}

function working(controller) {
  state.busy = controller;
  $("go").hidden = Boolean(controller);
  $("stop").hidden = !controller;
  document.body.classList.toggle("busy", Boolean(controller));
  drawCharts();
}

async function generate() {
  const text = $("prompt").value;
  if (state.busy || !state.about || !text) return;
  warn(null);
  const kind = mode();
  const request = options(state.about);
  let asked;
  if (kind === "chat") {
    if (!state.turns.length && state.shown) empty();
    if (!state.turns.length && systemPrompt()) state.turns.push({ role: "system", content: systemPrompt() });
    asked = [...state.turns, { role: "user", content: text }];
    addTurn("user", el("p", { class: "text" }, text));
    $("prompt").value = "";
  } else {
    empty();
    addTurn("prompt", el("p", { class: "text" }, text));
  }
  const run = newRun({ kind, prompt: kind === "chat" ? null : text, messages: asked, request, about: state.about });
  const answer = showRun(run);
  const body = { ...request, model: state.about.model, ...(kind === "chat" ? { messages: asked } : { prompt: text }) };
  const controller = new AbortController();
  working(controller);
  say("Generating");
  try {
    for await (const chunk of stream(kind, body, controller.signal)) {
      if (addChunk(run, chunk)) drawSoon(answer);
    }
  } catch (error) {
    if (controller.signal.aborted) run.finish_reason = "stopped";
    else warn(error);
  }
  answer.update();
  if (kind === "chat") state.turns = [...asked, { role: "assistant", content: run.text }];
  working(null);
  if (state.shown === answer) replay.update();
  const { tokens, steps } = figures(run);
  say(`${run.finish_reason === "stopped" ? "Stopped" : "Done"}: ${plural(tokens, "token")} in ${plural(steps, "step")}`);
}

// The same request without drafts, timed; its text has to be the same where drafting is lossless.
async function measurePlain() {
  const { run } = state.shown;
  const kind = run.kind;
  const asked = kind === "chat" ? { messages: run.messages } : { prompt: run.prompt };
  const request = { ...run.request, ...asked, speculative_config: { num_speculative_tokens: 0 }, return_steps: true, model: state.about.model };
  const other = newRun({ kind, request, about: state.about });
  const controller = new AbortController();
  warn(null);
  working(controller);
  say("Measuring plain decoding");
  try {
    for await (const chunk of stream(kind, request, controller.signal)) addChunk(other, chunk);
    const found = figures(other);
    if (found.rate) run.plain = { seconds: found.tokens / found.rate, tokens: found.tokens };
    if (run.finish_reason !== "stopped" && other.text !== run.text) {
      warn(new Error("Plain decoding wrote another text: near ties of single precision can do that, or a lossy verifier."));
    }
  } catch (error) {
    if (!controller.signal.aborted) warn(error);
  }
  working(null);
  say("Measured");
}

function openedRun(run) {
  warn(null);
  empty();
  for (const { role, content } of run.messages ?? []) {
    addTurn(role === "assistant" ? "reply" : role === "system" ? "system" : "user", el("p", { class: "text" }, content));
  }
  if (run.kind === "completion") addTurn("prompt", el("p", { class: "text" }, run.prompt ?? ""));
  $("model").textContent = run.model;
  showRun(run);
}

function showTheme(theme) {
  state.theme = theme;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
}

function remembered() {
  try {
    return THEMES.find((one) => one === localStorage.getItem("paceline-theme")) ?? "auto";
  } catch {
    return "auto"; // a page in a file may have no storage
  }
}

function listen() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (mode() === "chat" && !event.shiftKey))) {
      event.preventDefault();
      $("composer").requestSubmit();
    }
  });
  $("stop").addEventListener("click", () => state.busy?.abort());
  $("clear").addEventListener("click", empty);
  $("plain").addEventListener("click", measurePlain);
  $("save").addEventListener("click", () => saveRun(state.shown.run));
  $("export").addEventListener("click", () => exportRun(state.shown.run).catch(warn));
  $("open").addEventListener("change", async () => {
    const [file] = $("open").files;
    if (file) await openRun(file).then(openedRun).catch(warn);
    $("open").value = "";
  });
  $("theme").addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(state.theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("paceline-theme", theme);
    } catch { /* it is forgotten with the page */ }
    showTheme(theme);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTooltip();
    state.busy?.abort();
  });
  document.addEventListener("scroll", placeTooltip, { passive: true, capture: true });
}

async function begin() {
  showTheme(remembered());
  listen();
  const run = embedded();
  if (run) {
    document.body.classList.add("viewer");
    openedRun(run);
    return;
  }
  select(null);
  try {
    state.about = await askAbout();
  } catch (error) {
    warn(error);
    return;
  }
  $("model").textContent = state.about.model;
  prepare(state.about);
  showMode();
  drawCharts();
  if (!state.about.return_steps) {
    warn(new Error("This server tells nothing of its drafts, so texts are shown without them; it can be started so that it does."));
  }
  $("prompt").focus();
}

begin().catch(warn);
