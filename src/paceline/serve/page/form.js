// What is asked: the fields of the form as the body of a request.

import { $ } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "frequency_penalty"];

export const mode = () => $("composer").elements.mode.value;

export function prepare(about) {
  const depth = about.num_draft_tokens;
  $("depth").max = Math.max(1, depth);
  $("depth").value = Math.max(1, depth);
  $("drafting").checked = depth > 0;
  $("drafting").disabled = depth === 0;
  const show = () => {
    $("depth").disabled = depth === 0 || !$("drafting").checked;
    $("depth-shown").textContent = $("depth").value;
  };
  $("depth").addEventListener("input", show);
  $("drafting").addEventListener("change", show);
  show();
  const chat = $("composer").elements.mode[1];
  chat.disabled = !about.chat;
  if (!about.chat) chat.closest("label").title = "This model has no chat template";
  for (const choice of $("composer").elements.mode) choice.addEventListener("change", showMode);
  showMode();
}

export function showMode() {
  const chat = mode() === "chat";
  $("prompt").placeholder = chat ? "A message" : "A text to go on with";
  $("go").textContent = chat ? "Send" : "Generate";
  for (const one of document.querySelectorAll(".chat-only")) one.hidden = !chat;
}

// The options as a request has them; fields left empty are the server's defaults.
export function options(about) {
  const fields = $("composer").elements;
  const found = {};
  for (const name of NUMBERS) {
    if (fields[name].value !== "") found[name] = fields[name].valueAsNumber;
  }
  if (fields.stop.value) found.stop = [fields.stop.value];
  // The same request is made again to measure plain decoding, and is to give the same text.
  found.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  if (about.num_draft_tokens) found.speculative_config = { num_speculative_tokens: $("drafting").checked ? $("depth").valueAsNumber : 0 };
  if (about.return_steps) found.return_steps = true;
  return found;
}

export const systemPrompt = () => $("composer").elements.system.value;
