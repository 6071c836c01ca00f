// The views: each is made once, and shows what it is given again and again without making anything anew that did not change.
import { ask, bytes, call, chart, chip, el, notice, number, rate, remember, remembered, set, setChip, span, trouble, when } from "/page/parts.js";

const feedPath = (name) => `/api/v1/feeds/${encodeURIComponent(name)}`;
const feedLink = (name) => `#/feed/${encodeURIComponent(name)}`;

// stateOf: what a person wants to know first: what the feed does, unless something is wrong.
function stateOf(feed) {
  if (feed.error && feed.state !== "retrying") return ["failed", "bad"];
  if (feed.requested_state === "paused" && feed.state !== "paused") return ["pausing", "idle"];
  if (feed.problem && feed.state === "running") return ["running, with a problem", "warn"];
  return [feed.state];
}

function showError(error) {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, "That did not work"), trouble(error), el("div", { class: "end" }, el("button", { type: "button", "data-kind": "main", onclick: () => dialog.close() }, "Close")));
  if (!dialog.open) dialog.showModal();
}

const REASON = { name: "reason", label: "Reason", note: "(kept in the feed's history)" };
const VERBS = {
  pause: { label: "Pause", title: (name) => `Pause ${name}?`, text: "Delivery stops after the window under way; capture goes on, and nothing is lost while history is kept.", fields: [REASON] },
  resume: { label: "Resume", title: (name) => `Resume ${name}?`, text: "", fields: [REASON] },
  alter: { label: "Alter…", title: (name) => `Alter ${name}`, text: "What you name here replaces that part of the configuration, from one ts on.", fields: [{ name: "changes", label: "Changes", note: "as JSON", lines: true, value: "{\n  \"flush-interval\": \"5s\"\n}", required: true }, REASON] },
  reset: { label: "Reset…", title: (name) => `Reset ${name}`, text: "", fields: [{ name: "to", label: "To", options: [["snapshot", "a new snapshot: deliver what differs"], ["now", "now: leave out what was not delivered"], ["ts", "a ts, below"]] }, { name: "ts", label: "ts", note: "(only for the last choice)" }, REASON], kind: "danger" },
  clone: { label: "Clone…", title: (name) => `Clone ${name}`, text: "The same feed with another target, from the event store.", fields: [{ name: "name", label: "Name of the new feed", required: true }, { name: "sink", label: "Its target", placeholder: "s3://bucket/prefix", required: true }, REASON] },
  move: { label: "Move…", title: (name) => `Move ${name}`, text: "To another server; empty for any.", fields: [{ name: "to", label: "Server", note: "name or address" }, REASON] },
  cancel: { label: "Cancel…", title: (name) => `Cancel ${name} for good?`, text: "It ends and cannot be resumed. Its files and its history stay.", fields: [REASON], kind: "danger" },
  remove: { label: "Remove…", title: (name) => `Remove ${name}?`, text: "The feed goes. Files in the target stay.", fields: [REASON], kind: "danger" },
};

export async function askVerb(verb, name) {
  const known = VERBS[verb];
  const told = await ask(known.title(name), known.text, known.fields, known.label.replace("…", ""), known.kind || "main");
  if (told === null) return false;
  let body = { reason: told.reason };
  try {
    if (verb === "alter") body.changes = JSON.parse(told.changes);
    if (verb === "reset") body.to = told.to === "ts" ? told.ts : told.to;
    if (verb === "clone") body = { ...body, name: told.name, changes: { sink: told.sink } };
    if (verb === "move") body.to = told.to;
    await (verb === "remove" ? call(feedPath(name), undefined, "DELETE") : call(`${feedPath(name)}/${verb}`, body));
    notice(`${name}: ${verb} is asked for`);
    return true;
  } catch (error) {
    showError(error instanceof SyntaxError ? { code: "CONFIG_INVALID", message: `The changes are no JSON: ${error.message}` } : error);
    return false;
  }
}

// ---- the list of feeds

export function feedList() {
  const search = el("input", { type: "search", id: "search", "aria-label": "Find feeds by name or state", placeholder: "Find feeds…  ( / )", oninput: () => view.filter() });
  const count = el("span", { class: "soft" });
  const body = el("tbody");
  const empty = el("div", { class: "card", hidden: true }, el("h2", {}, "No feed yet"), el("p", {}, "A feed carries the changes of tables to a target."), el("a", { class: "button", href: "#/new" }, "Create the first one"));
  const table = el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["Feed", "State", "Lag", "Rows/s", "Last minutes", "Rows", "Bytes", "Files", "Owner"].map((title, at) => el("th", { scope: "col", class: at > 1 && at < 8 && at !== 4 ? "number" : undefined }, title)))), body);
  const node = el("div", {}, el("h1", {}, "Feeds"), el("div", { class: "bar" }, search, count), empty, el("div", { class: "card scroll" }, table));
  const rows = new Map();
  let selected = "";

  function rowOf(name) {
    const cells = { state: chip(""), lag: el("td", { class: "number", "data-label": "Lag" }), rate: el("td", { class: "number", "data-label": "Rows/s" }), spark: chart(`Rows per second of ${name} over the last minutes`, "spark"), rows: el("td", { class: "number", "data-label": "Rows" }), bytes: el("td", { class: "number", "data-label": "Bytes" }), files: el("td", { class: "number", "data-label": "Files" }), owner: el("td", { class: "soft", "data-label": "Owner" }), why: el("div", { class: "soft" }) };
    const row = el("tr", {}, el("td", { class: "wide", "data-label": "Feed" }, el("a", { href: feedLink(name) }, name), cells.why), el("td", { "data-label": "State" }, cells.state), cells.lag, cells.rate, el("td", { "data-label": "Last minutes" }, cells.spark), cells.rows, cells.bytes, cells.files, cells.owner);
    return { row, cells, text: "" };
  }

  const view = {
    node,
    title: "Feeds",
    poll: async () => (await call("/api/v1/feeds")).feeds,
    show(feeds) {
      remember(feeds);
      const names = new Set(feeds.map((feed) => feed.name));
      for (const [name, one] of rows) if (!names.has(name)) { one.row.remove(); rows.delete(name); }
      for (const feed of feeds) {
        let one = rows.get(feed.name);
        if (!one) { one = rowOf(feed.name); rows.set(feed.name, one); body.append(one.row); }
        const { cells } = one;
        const [state, tone] = stateOf(feed);
        setChip(cells.state, state, tone);
        set(cells.lag, span(feed.lag_s));
        const perSecond = rate(feed.name);
        set(cells.rate, perSecond === null ? "–" : number(perSecond));
        cells.spark.show(remembered(feed.name).map((sample) => sample.rate));
        set(cells.rows, number(feed.rows));
        set(cells.bytes, bytes(feed.bytes));
        set(cells.files, number(feed.files));
        set(cells.owner, feed.owner || "–");
        const wrong = feed.error || feed.problem;
        set(cells.why, wrong ? `${wrong.code ? `[${wrong.code}] ` : ""}${wrong.message || wrong.text || ""}`.slice(0, 160) : feed.snapshot ? "reading its first state" : "");
        one.text = `${feed.name} ${state} ${feed.owner}`.toLowerCase();
      }
      empty.hidden = feeds.length > 0;
      table.parentNode.hidden = !feeds.length;
      view.filter();
    },
    filter() {
      const wanted = search.value.trim().toLowerCase();
      let shown = 0;
      for (const one of rows.values()) {
        const fits = !wanted || one.text.includes(wanted);
        if (one.row.hidden === fits) one.row.hidden = !fits;
        shown += fits;
      }
      set(count, rows.size ? `${number(shown)} of ${number(rows.size)}` : "");
    },
    key(key) {
      const names = [...rows].filter(([, one]) => !one.row.hidden).map(([name]) => name);
      const at = names.indexOf(selected);
      if (key === "/") { search.focus(); return true; }
      if ((key === "j" || key === "k") && names.length) {
        if (rows.has(selected)) rows.get(selected).row.removeAttribute("aria-selected");
        selected = names[Math.min(names.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))];
        const { row } = rows.get(selected);
        row.setAttribute("aria-selected", "true");
        row.querySelector("a").focus();
        return true;
      }
      return false;
    },
  };
  return view;
}

// ---- one feed

const figure = (label) => { const value = el("b"); return [el("div", { class: "figure" }, value, el("span", {}, label)), value]; };

export function feedDetail(name) {
  const state = chip("…");
  const troubles = el("div");
  const made = Object.fromEntries([["lag", "lag of the checkpoint"], ["rate", "rows per second"], ["rows", "rows delivered"], ["bytes", "bytes"], ["files", "files"], ["windows", "windows"], ["tables", "tables"], ["owner", "server"], ["kept", "history is kept for"]].map(([key, label]) => [key, figure(label)]));
  const rates = chart(`Rows per second of ${name}`, "chart");
  const lags = chart(`Lag of ${name} in seconds`, "chart");
  const buttons = Object.fromEntries(Object.entries(VERBS).map(([verb, known]) => [verb, el("button", { type: "button", "data-verb": verb, "data-kind": known.kind === "danger" ? "danger" : undefined, onclick: () => askVerb(verb, name).then((done) => done && view.again()) }, known.label)]));
  const verdict = el("div");
  const verify = el("button", { type: "button", "data-verb": "verify", onclick: () => verifyNow() }, "Verify");
  const tables = el("tbody");
  const history = el("tbody");
  const config = el("pre", { tabindex: "0" });
  const target = el("p", { class: "soft mono" });
  const snapshot = el("div");
  const node = el("div", {}, el("h1", {}, `${name} `, state), target, troubles, el("div", { class: "bar" }, Object.values(buttons), verify), verdict, snapshot,
    el("div", { class: "card grid" }, Object.values(made).map(([shown]) => shown)),
    el("div", { class: "columns" }, el("div", { class: "card" }, el("h2", {}, "Rows per second"), rates), el("div", { class: "card" }, el("h2", {}, "Lag"), lags)),
    el("div", { class: "card scroll" }, el("h2", {}, "Tables"), el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["Table", "State", "Lag", "Rows", "Bytes", "Files", "What may be done"].map((title, at) => el("th", { scope: "col", class: at > 1 && at < 6 ? "number" : undefined }, title)))), tables)),
    el("div", { class: "card scroll" }, el("h2", {}, "What happened"), el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["When", "What", "Who", "Why"].map((title) => el("th", { scope: "col" }, title)))), history)),
    el("div", { class: "card" }, el("h2", {}, "Configuration"), config));
  const rows = new Map();

  async function tableVerb(table, verb) {
    const told = await ask(`${verb} ${table}?`, { retry: "It is tried again now.", resnapshot: "It is read again, and what differs from the target is delivered.", exclude: "It is left out from now on; its rows in the target stay.", include: "It comes back and begins with its state." }[verb], [REASON], verb);
    if (told === null) return;
    try {
      await call(`${feedPath(name)}/tables/${table.split("/").map(encodeURIComponent).join("/")}/${verb}`, { reason: told.reason });
      notice(`${table}: ${verb} is asked for`);
      view.again();
    } catch (error) { showError(error); }
  }

  async function verifyNow() {
    verify.disabled = true;
    verdict.replaceChildren(el("div", { class: "card" }, el("h2", {}, "Verifying…"), el("p", { class: "soft", role: "status" })));
    const line = verdict.querySelector("p");
    const timer = setInterval(() => call(`${feedPath(name)}/verify`).then((told) => set(line, told.progress[told.progress.length - 1] || "reading…"), () => {}), 1000);
    try {
      const found = await call(`${feedPath(name)}/verify`, {});
      const different = found.tables.filter((table) => !table.identical);
      verdict.replaceChildren(el("div", { class: "card" }, el("h2", {}, "Verified ", chip(found.identical ? "identical" : "different", found.identical ? "good" : "bad")),
        el("p", {}, `${number(found.rows)} rows of ${found.tables.length} tables as of ${found.checkpoint_time}`),
        different.map((table) => trouble({ message: `${table.name}: ${table.unchecked || `${number(table.missing)} rows are missing, ${number(table.unexpected)} unexpected, ${number(table.different)} different; keys ${table.sample_keys.join(", ")}`}` }, table.unchecked ? "warn" : "bad"))));
    } catch (error) { verdict.replaceChildren(trouble(error)); } finally { clearInterval(timer); verify.disabled = false; }
  }

  function showTable(table) {
    let one = rows.get(table.name);
    if (!one) {
      const cells = { state: chip(""), lag: el("td", { class: "number", "data-label": "Lag" }), rows: el("td", { class: "number", "data-label": "Rows" }), bytes: el("td", { class: "number", "data-label": "Bytes" }), files: el("td", { class: "number", "data-label": "Files" }), why: el("div", { class: "soft" }) };
      const verbs = ["retry", "resnapshot", "exclude", "include"].map((verb) => el("button", { type: "button", "aria-label": `${verb} ${table.name}`, onclick: () => tableVerb(table.name, verb) }, verb));
      one = { cells, row: el("tr", {}, el("td", { class: "wide", "data-label": "Table" }, table.name, cells.why), el("td", { "data-label": "State" }, cells.state), cells.lag, cells.rows, cells.bytes, cells.files, el("td", { class: "wide", "data-label": "" }, el("div", { class: "bar" }, verbs))) };
      rows.set(table.name, one);
      tables.append(one.row);
    }
    const progress = table.progress || {};
    setChip(one.cells.state, progress.joining ? "joining" : table.state, progress.joining ? "warn" : undefined);
    set(one.cells.lag, span(progress.lag_s));
    set(one.cells.rows, number(progress.rows || 0));
    set(one.cells.bytes, bytes(progress.bytes || 0));
    set(one.cells.files, number(progress.files || 0));
    set(one.cells.why, table.reason ? `${table.code ? `[${table.code}] ` : ""}${table.reason} ${table.hint || ""}` : "");
  }

  const view = {
    node,
    title: name,
    again: () => {},
    poll: async () => {
      const [feed, told] = await Promise.all([call(feedPath(name)), call(`${feedPath(name)}/history`)]);
      return { feed, history: told.history };
    },
    show({ feed, history: entries }) {
      remember([feed]);
      setChip(state, ...stateOf(feed));
      set(target, `${feed.source}  →  ${feed.config.sink && feed.config.sink.uri ? feed.config.sink.uri : feed.config.sink || ""}`);
      const wrong = [];
      if (feed.error) wrong.push(trouble(feed.error));
      if (feed.retry) wrong.push(trouble({ message: `It failed ${number(feed.retry.failures)} times in a row since ${when(feed.retry.since_ms)}; it is tried again at ${when(feed.retry.next_attempt_ms)}.` }, "warn"));
      if (feed.problem) wrong.push(trouble({ message: `${feed.problem.stage}: ${feed.problem.text} (since ${when(feed.problem.since_ms)})`, hint: feed.problem.hint }, "warn"));
      for (const line of feed.capture_problems || []) wrong.push(trouble({ message: line }, "warn"));
      for (const one of feed.uncovered || []) wrong.push(trouble({ message: `The checkpoint does not cover ${one.name}: it is ${one.state}.` }, "warn"));
      const text = wrong.map((one) => one.textContent).join("\n");
      if (troubles.dataset.text !== text) { troubles.dataset.text = text; troubles.replaceChildren(...wrong); }
      const perSecond = rate(name);
      const figures = { lag: span(feed.lag_s), rate: perSecond === null ? "–" : number(perSecond), rows: number(feed.rows), bytes: bytes(feed.bytes), files: number(feed.files), windows: number(feed.windows), tables: number(feed.tables.length), owner: feed.owner || "nobody", kept: feed.history ? span(feed.history.remaining_s) : "–" };
      for (const [key, value] of Object.entries(figures)) set(made[key][1], value);
      rates.show(remembered(name).map((sample) => sample.rate));
      lags.show(remembered(name).map((sample) => sample.lag));
      const paused = feed.requested_state === "paused";
      buttons.pause.hidden = paused;
      buttons.resume.hidden = !paused && !feed.error && !feed.retry;
      set(snapshot, "");
      if (feed.snapshot) snapshot.append(trouble({ message: `Reading its first state: ${number(feed.snapshot.parts_done)} of ${number(feed.snapshot.parts)} parts, ${number(feed.snapshot.rows)} rows` }, "warn"));
      const names = new Set(feed.tables.map((table) => table.name));
      for (const [known, one] of rows) if (!names.has(known)) { one.row.remove(); rows.delete(known); }
      feed.tables.forEach(showTable);
      if (history.childElementCount !== entries.length) history.replaceChildren(...entries.slice().reverse().map((entry) => el("tr", {}, el("td", { "data-label": "When" }, when(entry.at_ms)), el("td", { "data-label": "What" }, `${entry.what}${entry.new ? `: ${entry.new}` : ""}`), el("td", { "data-label": "Who" }, entry.by), el("td", { "data-label": "Why" }, entry.why))));
      set(config, JSON.stringify(feed.config, null, 2));
    },
    key(key) {
      if (key === "p") { askVerb(buttons.resume.hidden ? "pause" : "resume", name).then((done) => done && view.again()); return true; }
      if (key === "v") { if (!verify.disabled) verifyNow(); return true; }
      return false;
    },
  };
  return view;
}

// ---- a new feed

export function newFeed() {
  const field = (label, note, input) => el("label", {}, label, note ? el("small", {}, ` ${note}`) : null, input);
  const name = el("input", { id: "new-name", required: true, autocomplete: "off", placeholder: "orders" });
  const tables = el("textarea", { required: true, spellcheck: "false", placeholder: "shop.*\n!shop.tmp_*" });
  const sink = el("input", { required: true, autocomplete: "off", spellcheck: "false", placeholder: "s3://bucket/prefix, file:///dir, mysql://…, kafka://…" });
  const flush = el("input", { autocomplete: "off", placeholder: "5s" });
  const more = el("textarea", { spellcheck: "false", placeholder: "{ \"sink\": { \"protocol\": \"canal-json\" } }" });
  const outcome = el("div", { "aria-live": "polite" });

  function tree() {
    const given = more.value.trim() ? JSON.parse(more.value) : {};
    const config = { ...given, name: name.value.trim(), tables: tables.value.split("\n").map((line) => line.trim()).filter(Boolean), sink: { ...(typeof given.sink === "object" ? given.sink : {}), uri: sink.value.trim() } };
    if (flush.value.trim()) config["flush-interval"] = flush.value.trim();
    return config;
  }
  async function attempt(work) {
    outcome.replaceChildren(el("p", { class: "soft" }, "…"));
    try {
      await work(tree());
    } catch (error) {
      outcome.replaceChildren(trouble(error instanceof SyntaxError ? { code: "CONFIG_INVALID", message: `More settings: no JSON: ${error.message}` } : error));
    }
  }
  const preview = () => attempt(async (config) => {
    const told = await call("/api/v1/feeds/preview", config);
    outcome.replaceChildren(el("div", { class: "card scroll" }, el("h2", {}, `${told.tables.length} tables, ${told.dispatchers} dispatchers, ${told.tasks_at_once} tasks at once`),
      el("ol", {}, told.plan.map((step) => el("li", {}, step))),
      el("table", {}, el("thead", {}, el("tr", {}, ["Table", "Key", "Columns"].map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, told.tables.map((table) => el("tr", {}, el("td", {}, table.name), el("td", {}, table.columns.filter((column) => column.key).map((column) => column.name).join(", ") || "none: rows are counted"), el("td", { class: "soft" }, table.columns.map((column) => `${column.name} ${column.type}`).join(", "))))))));
  });
  const form = el("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(async (config) => {
      const made = await call("/api/v1/feeds", config);
      notice(`${made.name} is created`);
      location.hash = feedLink(made.name);
    });
  } }, field("Name", "", name), field("Tables", "one pattern a line; ! leaves out", tables), field("Target", "its address", sink), field("Flush interval", "optional", flush), field("More settings", "optional, as JSON", more),
  el("div", { class: "bar" }, el("button", { type: "button", onclick: preview }, "Preview the tables"), el("button", { type: "submit", "data-kind": "main" }, "Create")));
  return { node: el("div", {}, el("h1", {}, "New feed"), el("div", { class: "columns" }, el("div", { class: "card" }, form), outcome)), title: "New feed", poll: async () => null, show() {}, key: () => false };
}

// ---- servers and health

export function servers() {
  const health = el("div", { class: "grid" });
  const list = el("tbody");
  const drain = el("button", { type: "button", onclick: () => toggle() }, "Drain this server");
  let draining = false;
  async function toggle() {
    const told = await ask(draining ? "Take feeds again?" : "Drain this server?", draining ? "" : "Its feeds go to other servers, gracefully; it takes none until you say so.", [], draining ? "End the drain" : "Drain");
    if (told === null) return;
    try { await call("/api/v1/server/drain", draining ? undefined : {}, draining ? "DELETE" : "POST"); view.again(); } catch (error) { showError(error); }
  }
  const view = {
    node: el("div", {}, el("h1", {}, "Servers"), el("div", { class: "card" }, el("h2", {}, "Health of this server"), health), el("div", { class: "card scroll" }, el("h2", {}, "Servers of this meta database"), el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["Server", "State", "Address", "Feeds"].map((title) => el("th", { scope: "col" }, title)))), list)), drain),
    title: "Servers",
    again: () => {},
    poll: async () => Promise.all([call("/api/v1/health"), call("/api/v1/servers"), call("/api/v1/server/drain")]),
    show([told, found, drained]) {
      health.replaceChildren(...Object.entries(told.components).map(([name, one]) => el("div", { class: "figure" }, chip(one.ok ? "ok" : "failing"), el("b", {}, name), el("span", {}, [one.detail, one.hint, ...Object.entries(one.facts).map(([key, value]) => `${key.replaceAll("_", " ")} ${value}`)].filter(Boolean).map((text) => text.replace(/\.$/, "")).join("; ")))));
      list.replaceChildren(...found.servers.map((server) => el("tr", {}, el("td", { "data-label": "Server" }, server.owner, server.self ? " (this one)" : ""), el("td", { "data-label": "State" }, chip(server.state)), el("td", { class: "soft", "data-label": "Address" }, server.url), el("td", { class: "wide", "data-label": "Feeds" }, server.feeds.flatMap((name) => [el("a", { href: feedLink(name) }, name), " "])))));
      draining = drained.draining;
      set(drain, draining ? "End the drain" : "Drain this server");
    },
    key: () => false,
  };
  return view;
}

// ---- SQL

export function sql() {
  const text = el("textarea", { "aria-label": "SQL statement", spellcheck: "false", rows: "5" });
  text.value = "SHOW CHANGEFEEDS";
  const outcome = el("div", { "aria-live": "polite" });
  const run = async () => {
    try {
      const told = await call("/api/v1/sql", { text: text.value });
      const columns = told.columns || [];
      outcome.replaceChildren(el("div", { class: "card scroll" }, columns.length ? el("table", {}, el("thead", {}, el("tr", {}, columns.map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, (told.rows || []).map((row) => el("tr", {}, row.map((value) => el("td", {}, value === null ? "–" : String(value))))))) : el("pre", {}, JSON.stringify(told, null, 2))));
    } catch (error) { outcome.replaceChildren(trouble(error)); }
  };
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); });
  return { node: el("div", {}, el("h1", {}, "SQL"), el("div", { class: "card" }, el("label", {}, "Statement", el("small", {}, " Ctrl+Enter runs it"), text), el("button", { type: "button", "data-kind": "main", onclick: run }, "Run")), outcome), title: "SQL", poll: async () => null, show() {}, key: () => false };
}

// ---- signing in

export function signIn(why, done) {
  const token = el("input", { type: "password", autocomplete: "off", required: true, id: "token" });
  const node = el("div", { class: "card narrow" }, el("h1", {}, "Penstock"), why ? trouble(why) : null,
    el("p", {}, "This server wants a token. On its machine, ", el("code", {}, "penstock page"), " prints an address that signs you in; ", el("code", {}, "penstock token create NAME --role operate"), " makes a token that lasts."),
    el("form", { onsubmit: (event) => { event.preventDefault(); done(token.value.trim()); } }, el("label", {}, "Token", token), el("button", { type: "submit", "data-kind": "main" }, "Sign in")));
  return { node, title: "Sign in", poll: async () => null, show() {}, key: () => false };
}
