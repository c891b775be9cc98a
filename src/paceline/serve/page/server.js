// Asks the server that this page came from. A browser sends the key by itself, where there is one.

async function refusal(response) {
  try {
    const { error } = await response.json();
    return error.param ? `${error.message} (${error.param})` : error.message;
  } catch {
    return `the server answered ${response.status} ${response.statusText}`;
  }
}

export async function askAbout() {
  const response = await fetch("/page/about");
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

// The events of a stream, as objects. Leaving the loop, or `signal`, ends the request, and with it its row.
export async function* stream(kind, body, signal) {
  const path = kind === "chat" ? "/v1/chat/completions" : "/v1/completions";
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  if (!response.ok) throw new Error(await refusal(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the connection ended in the middle of the answer");
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

export const pageSource = async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(await refusal(response));
  return response.text();
};
