// The step that is looked at: a slider over all of them, the strip above it, and the draft tree below.

import { $ } from "./dom.js";
import { stepStrip, timeBar } from "./charts.js";
import { sourceClass } from "./sources.js";
import { drawTree, nodeTable, said } from "./tree.js";

const PACE = 700; // milliseconds for which a step is looked at

export class Replay {
  constructor(onShow) {
    this.onShow = onShow;
    this.run = null;
    this.at = -1;
    this.follows = true; // the newest step
    this.timer = null;
    $("slider").addEventListener("input", () => this.go(Number($("slider").value)));
    $("back").addEventListener("click", () => this.go(this.at - 1));
    $("next").addEventListener("click", () => this.go(this.at + 1));
    $("play").addEventListener("click", () => this.toggle());
    $("strip").addEventListener("click", (event) => {
      const column = event.target.closest("[data-step]");
      if (column) this.go(Number(column.dataset.step));
    });
  }

  open(run) {
    this.stop();
    this.run = run;
    this.follows = true;
    this.at = -1;
    this.update();
  }

  // Shows what the run has gained.
  update() {
    const count = this.run?.steps.length ?? 0;
    $("slider").disabled = !count;
    $("slider").max = Math.max(0, count - 1);
    $("strip").replaceChildren(stepStrip(this.run ?? { steps: [] }, (token) => sourceClass(token, this.run.drafters)));
    if (this.follows) this.at = count - 1;
    this.draw();
  }

  // Shows step `at`; `live` is true at the end, where nothing is faded.
  go(at, { playing = false } = {}) {
    const count = this.run?.steps.length ?? 0;
    if (!count) return;
    if (!playing) this.stop();
    this.at = Math.min(count - 1, Math.max(0, at));
    this.follows = this.at === count - 1;
    this.draw();
  }

  toggle() {
    if (this.timer !== null) return this.stop();
    if (!this.run?.steps.length) return undefined;
    this.go(this.follows ? 0 : this.at, { playing: true });
    $("play").textContent = "Pause";
    this.timer = setInterval(() => {
      if (this.at >= this.run.steps.length - 1) this.stop();
      else this.go(this.at + 1, { playing: true });
    }, PACE);
    return undefined;
  }

  stop() {
    if (this.timer === null) return;
    clearInterval(this.timer);
    this.timer = null;
    $("play").textContent = "Play";
  }

  draw() {
    const step = this.run?.steps[this.at];
    const count = this.run?.steps.length ?? 0;
    $("slider").value = Math.max(0, this.at);
    $("slider").setAttribute("aria-valuetext", step ? `step ${this.at + 1} of ${count}` : "no step");
    $("back").disabled = this.at <= 0;
    $("next").disabled = this.at >= count - 1;
    $("play").disabled = count < 2;
    $("replay-title").textContent = step ? `Step ${this.at + 1} of ${count}` : "Steps";
    $("replay-said").textContent = step ? said(step) : "";
    const kept = $("tree").scrollLeft;
    $("tree").replaceChildren(...(step ? [drawTree(step, this.run.drafters)] : []));
    $("tree").scrollLeft = kept;
    $("times").replaceChildren(...(step ? [timeBar(step)] : []));
    $("nodes").hidden = !step;
    $("nodes").querySelector(".scroll").replaceChildren(...(step ? [nodeTable(step)] : []));
    for (const column of $("strip").querySelectorAll(".now")) column.classList.remove("now");
    $("strip").querySelector(`[data-step="${this.at}"]`)?.classList.add("now");
    this.onShow(this.at, { live: this.follows && this.timer === null });
  }
}
