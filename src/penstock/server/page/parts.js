// What the views are made of: elements, numbers for people, calls of the API, what is remembered of each feed. Text goes in as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "title"].includes(tag) && attributes.ns !== false && (tag !== "title" || attributes.svg);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false || name === "svg" || name === "ns") continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export class ApiError extends Error {
  constructor(status, body) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.hint = body.hint || "";
  }
}

const TOKEN = "penstock.token";
export const session = {
  get token() { return sessionStorage.getItem(TOKEN) || ""; },
  set token(value) { value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN); },
};

export async function call(path, body, method) {
  const headers = session.token ? { Authorization: `Bearer ${session.token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method: method || (body === undefined ? "GET" : "POST"), headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new ApiError(0, { code: "SERVER_UNREACHABLE", message: "The server does not answer.", hint: "It may be starting or have ended; this page tries again by itself." });
  }
  const told = await answer.json().catch(() => ({}));
  // Health says 503 with a body that is shown.
  if (!answer.ok && !(answer.status === 503 && told.components)) throw new ApiError(answer.status, told);
  return told;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];
export function bytes(count) {
  let at = 0;
  while (count >= 1000 && at < UNITS.length - 1) { count /= 1000; at += 1; }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${UNITS[at]}`;
}
export const number = (count) => Math.round(count).toLocaleString("en-US");
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} days`;
}
export const when = (ms) => (ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "–");

const TONES = { running: "good", active: "good", ok: "good", ready: "good", identical: "good", finished: "idle", paused: "idle", pausing: "idle", cancelled: "idle", pending: "idle", excluded: "idle", removed: "idle", doubtful: "warn", rereading: "warn", retrying: "warn", delivering: "warn", draining: "warn", stopped: "bad", quarantined: "bad", failed: "bad", failing: "bad" };
export function chip(text, tone) {
  return el("span", { class: "chip", "data-tone": tone || TONES[text] || "idle" }, text);
}
export function setChip(node, text, tone) {
  set(node, text);
  node.dataset.tone = tone || TONES[text] || "idle";
}

// Of each feed the last samples: when, rows, and lag. Rates come from differences, so a page that was just opened has none yet.
const KEPT = 150;
const samples = new Map();
export function remember(feeds, all) {
  const now = performance.now() / 1000;
  for (const feed of feeds) {
    const kept = samples.get(feed.name) || [];
    const last = kept[kept.length - 1];
    // Two answers in a moment, as after a verb, would make a rate out of next to nothing.
    if (last && now - last.at < 0.9) continue;
    const rate = last ? Math.max(0, (feed.rows - last.rows) / Math.max(0.001, now - last.at)) : null;
    kept.push({ at: now, rows: feed.rows, lag: feed.lag_s, rate });
    if (kept.length > KEPT) kept.shift();
    samples.set(feed.name, kept);
  }
  if (!all) return;
  const names = new Set(feeds.map((feed) => feed.name));
  for (const name of samples.keys()) if (!names.has(name)) samples.delete(name);
}
export const remembered = (name, what) => (samples.get(name) || []).map((sample) => [sample.at, sample[what]]);
export function rate(name) {
  const recent = (samples.get(name) || []).slice(-4).filter((sample) => sample.rate !== null);
  return recent.length ? recent.reduce((sum, sample) => sum + sample.rate, 0) / recent.length : null;
}

// A curve over time: what is not known leaves a gap, and a tab that slept has a long step.
export function curve(points, width, height) {
  const known = points.filter(([, value]) => value !== null && value !== undefined);
  if (known.length < 2) return { line: "", area: "", top: 0, seconds: 0 };
  const [from, to] = [known[0][0], points[points.length - 1][0]];
  const top = Math.max(...known.map(([, value]) => value), 1e-9);
  const x = (at) => (((at - from) / Math.max(0.001, to - from)) * width).toFixed(1);
  let [line, area, begun] = ["", "", null];
  const end = (at) => { if (begun !== null) area += `L${x(at)},${height}L${x(begun)},${height}Z`; begun = null; };
  let before = from;
  for (const [at, value] of points) {
    if (at < from) continue;
    if (value === null || value === undefined) { end(before); continue; }
    const step = `${begun === null ? "M" : "L"}${x(at)},${(height - 1 - (value / top) * (height - 3)).toFixed(1)}`;
    if (begun === null) begun = at;
    line += step;
    area += step;
    before = at;
  }
  end(before);
  return { line, area, top: known.some(([, value]) => value > 0) ? top : 0, seconds: to - from };
}
export function chart(label, kind, unit) {
  const [width, height] = kind === "spark" ? [120, 26] : [600, 120];
  const area = el("path", { class: "area" });
  const line = el("path");
  const svg = el("svg", { class: kind, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, area, line);
  const [highest, since] = [el("span"), el("span")];
  const node = kind === "spark" ? svg : el("figure", {}, svg, el("figcaption", { class: "soft" }, since, highest));
  node.show = (points) => {
    const drawn = curve(points, width, height);
    if (line.getAttribute("d") !== drawn.line) { line.setAttribute("d", drawn.line); area.setAttribute("d", drawn.area); }
    if (kind === "spark") return;
    set(since, drawn.line ? `the last ${span(Math.max(1, Math.round(drawn.seconds)))}` : "samples come every two seconds");
    set(highest, drawn.line ? `highest ${unit(drawn.top)}` : "");
    svg.setAttribute("aria-label", drawn.line ? `${label}, highest ${unit(drawn.top)}` : label);
  };
  return node;
}

export function trouble(error, tone) {
  return el("div", { class: "trouble", "data-tone": tone || "bad", role: "alert" },
    el("div", {}, error.code ? el("code", {}, `[${error.code}] `) : null, error.message || error.detail || error.reason || ""),
    error.hint ? el("p", {}, error.hint) : null);
}

let noticeTimer = 0;
export function notice(text) {
  const place = document.getElementById("notice");
  place.textContent = text;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { place.textContent = ""; }, 6000);
}

// ask: a dialog with fields. It stays open, with what was typed, until `send` has done what was asked for; resolves with whether it has.
export function ask({ title, text, fields = [], button = "OK", kind = "main", send }) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const inputs = new Map();
    const outcome = el("div", { "aria-live": "assertive" });
    const labels = fields.map((field) => {
      const tag = field.options ? "select" : field.lines ? "textarea" : "input";
      const input = el(tag, { name: field.name, required: field.required, placeholder: field.placeholder, autocomplete: "off", spellcheck: "false" });
      if (field.options) input.append(...field.options.map(([value, shown]) => el("option", { value }, shown)));
      else input.value = field.value || "";
      inputs.set(field.name, input);
      const label = el("label", { hidden: Boolean(field.when) }, field.label, field.note ? el("small", {}, ` ${field.note}`) : null, input);
      if (field.when) inputs.get(field.when[0]).addEventListener("change", (event) => { label.hidden = event.target.value !== field.when[1]; });
      return label;
    });
    const submit = el("button", { type: "submit", "data-kind": kind }, button);
    let done = false;
    const form = el("form", { onsubmit: async (event) => {
      event.preventDefault();
      submit.disabled = true;
      outcome.replaceChildren();
      try {
        await send(Object.fromEntries([...inputs].map(([name, input]) => [name, input.value.trim()])));
        done = true;
        if (form.isConnected) dialog.close();
      } catch (error) {
        outcome.replaceChildren(trouble(error instanceof SyntaxError ? { code: "CONFIG_INVALID", message: `That is no JSON: ${error.message}` } : error));
      } finally { submit.disabled = false; }
    } }, el("h2", { id: "dialog-title" }, title), text ? el("p", { class: "soft" }, text) : null, labels, outcome,
    el("div", { class: "end" }, el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), submit));
    dialog.replaceChildren(form);
    dialog.onclose = () => { dialog.onclose = null; resolve(done); };
    dialog.showModal();
  });
}

// scrolled: what may be wider than the screen; who has no mouse scrolls it too.
export const scrolled = (label, ...children) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
export const count = (number_, one, many) => `${number(number_)} ${number_ === 1 ? one : many || `${one}s`}`;
