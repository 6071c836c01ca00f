// One feed: figures, curves, tables with their ranges, every verb, verification, what happened.
import { ask, bytes, call, chart, chip, count, el, notice, number, rate, remember, remembered, scrolled, set, setChip, span, trouble, when } from "/page/parts.js";

export const feedPath = (name) => `/api/v1/feeds/${encodeURIComponent(name)}`;
export const feedLink = (name) => `#/feed/${encodeURIComponent(name)}`;

// stateOf: what a person wants to know first: what the feed does, unless something is wrong.
export function stateOf(feed) {
  if (feed.error && feed.state !== "retrying") return ["failed", "bad"];
  if (feed.requested_state === "paused" && feed.state !== "paused") return ["pausing", "idle"];
  if (feed.problem && feed.state === "running") return ["running, with a problem", "warn"];
  return [feed.state];
}

const OVER = ["cancelled", "removed", "finished"];
const REASON = { name: "reason", label: "Reason", note: "(kept in the feed's history)" };
const VERBS = {
  resume: { label: "Resume", title: (name) => `Resume ${name}?`, text: "It goes on where it stopped.", fields: () => [REASON] },
  pause: { label: "Pause", title: (name) => `Pause ${name}?`, text: "Delivery stops after the window under way; capture goes on, and nothing is lost while history is kept.", fields: () => [REASON] },
  alter: { label: "Alter…", title: (name) => `Alter ${name}`, text: "What you name here replaces that part of the configuration, from one ts on; what you leave out stays.", fields: (feed) => [{ name: "changes", label: "Changes", note: "as JSON", lines: true, value: JSON.stringify({ tables: feed.config.tables, "flush-interval": feed.config["flush-interval"] }, null, 2), required: true }, REASON] },
  clone: { label: "Clone…", title: (name) => `Clone ${name}`, text: "The same feed with another target, from the event store.", fields: () => [{ name: "name", label: "Name of the new feed", required: true }, { name: "sink", label: "Its target", placeholder: "s3://bucket/prefix", required: true }, REASON] },
  move: { label: "Move…", title: (name) => `Move ${name}`, text: "To another server of this meta database.", fields: (_feed, servers) => [{ name: "to", label: "Server", options: [["", "any other one"], ...servers.map((server) => [server.owner, `${server.owner}${server.self ? " (this one)" : ""}`])] }, REASON] },
  reset: { label: "Reset…", title: (name) => `Reset ${name}`, text: "Its place in the changes becomes another one.", fields: () => [{ name: "to", label: "To", options: [["snapshot", "a new snapshot: deliver what differs"], ["now", "now: leave out what was not delivered"], ["ts", "a ts"]] }, { name: "ts", label: "ts", when: ["to", "ts"] }, REASON], kind: "danger" },
  cancel: { label: "Cancel…", title: (name) => `Cancel ${name} for good?`, text: "It ends and cannot be resumed. Its files and its history stay.", fields: () => [REASON], kind: "danger", button: "Cancel the feed" },
  remove: { label: "Remove…", title: (name) => `Remove ${name}?`, text: "The feed goes, with its place in the changes. Files in the target stay.", fields: () => [REASON], kind: "danger" },
};

export async function askVerb(verb, feed) {
  const { name } = feed;
  const known = VERBS[verb];
  const servers = verb === "move" ? (await call("/api/v1/servers").catch(() => ({ servers: [] }))).servers : [];
  return ask({ title: known.title(name), text: known.text, fields: known.fields(feed, servers), button: known.button || known.label.replace("…", ""), kind: known.kind || "main", send: async (told) => {
    const body = { reason: told.reason };
    if (verb === "alter") body.changes = JSON.parse(told.changes);
    if (verb === "reset") body.to = told.to === "ts" ? told.ts : told.to;
    if (verb === "clone") Object.assign(body, { name: told.name, changes: { sink: told.sink } });
    if (verb === "move") body.to = told.to;
    const answer = await call(`${feedPath(name)}/${verb}`, body);
    notice(answer.changed === false ? `${name}: nothing to ${verb}` : `${name}: ${verb} is asked for`);
    if (verb === "remove") location.hash = "#/";
    if (verb === "clone") location.hash = feedLink(answer.clone);
  } });
}

const TABLE_VERBS = {
  retry: ["Retry", "It is tried again now."],
  include: ["Include", "It comes back and begins with its state."],
  resnapshot: ["Resnapshot", "It is read again, and what differs from the target is delivered."],
  exclude: ["Exclude", "It is left out from now on; its rows in the target stay."],
};
const leftOut = (table) => table.state === "excluded" || table.code === "TABLE_PAUSED";
const fits = (verb, table) => (leftOut(table) ? verb === "include" : table.state === "ok" ? verb === "resnapshot" || verb === "exclude" : verb !== "include");
const numeric = (label) => el("td", { class: "number", "data-label": label });
const figure = (label) => { const value = el("b"); return [el("div", { class: "figure" }, value, el("span", {}, label)), value]; };
const heads = (titles, numbers) => el("thead", {}, el("tr", {}, titles.map((title, at) => el("th", { scope: "col", class: numbers.includes(at) ? "number" : undefined }, title))));

// ---- a table's row, and the ranges below it

function tableRow(feed, table, act) {
  const cells = { state: chip(""), lag: numeric("Lag"), rows: numeric("Rows"), bytes: numeric("Bytes"), files: numeric("Files"), why: el("div", { class: "soft" }) };
  const verbs = Object.entries(TABLE_VERBS).map(([verb, [label]]) => el("button", { type: "button", class: "small", "data-table-verb": verb, "aria-label": `${verb} ${table}`, onclick: () => act(table, verb) }, label));
  const found = el("tbody");
  const summary = el("summary", {}, "Ranges");
  const details = el("details", { ontoggle: () => details.open && look() }, summary, scrolled(`Ranges of ${table}`, el("table", {}, heads(["Range", "State", "Lag", "Rows", "Bytes", "Files"], [2, 3, 4, 5]), found)));
  const row = el("tr", {}, el("td", { class: "wide", "data-label": "Table" }, el("bdi", { class: "name" }, table), cells.why, details), el("td", { "data-label": "State" }, cells.state), cells.lag, cells.rows, cells.bytes, cells.files, el("td", { class: "wide verbs", "data-label": "" }, verbs));

  async function look() {
    const told = await call(`${feedPath(feed)}/ranges?table=${encodeURIComponent(table)}&limit=200`).catch((error) => ({ ranges: [], total: 0, error }));
    set(summary, told.error ? "Ranges" : count(told.total, "range"));
    found.replaceChildren(...told.ranges.map((one) => el("tr", {}, el("td", {}, `${one.number} of ${one.of}`), el("td", {}, chip(one.stopped ? "stopped" : one.joining ? "joining" : one.rows ? "delivering" : "waiting", one.stopped ? "bad" : one.joining ? "warn" : one.rows ? "good" : "idle")), el("td", { class: "number" }, span(one.lag_s)), el("td", { class: "number" }, number(one.rows)), el("td", { class: "number" }, bytes(one.bytes)), el("td", { class: "number" }, number(one.files)))));
    if (told.total > told.ranges.length) found.append(el("tr", {}, el("td", { colspan: "6", class: "soft" }, `and ${number(told.total - told.ranges.length)} more`)));
    if (told.error) found.append(el("tr", {}, el("td", { colspan: "6" }, told.error.message)));
  }

  function show(told) {
    const progress = told.progress || {};
    setChip(cells.state, progress.joining ? "joining" : leftOut(told) ? "excluded" : told.state, progress.joining ? "warn" : undefined);
    set(cells.lag, span(progress.lag_s));
    set(cells.rows, number(progress.rows || 0));
    set(cells.bytes, bytes(progress.bytes || 0));
    set(cells.files, number(progress.files || 0));
    const reread = told.reread ? ` ${number(told.reread.parts_done)} of ${count(told.reread.parts, "part")} are read.` : "";
    set(cells.why, told.reason ? `${told.code ? `[${told.code}] ` : ""}${told.reason} ${told.hint || ""}${reread}` : "");
    for (const button of verbs) button.hidden = !fits(button.dataset.tableVerb, told);
    if (details.open) look();
  }
  return { row, show };
}

// ---- verification

function verification(name, again) {
  const place = el("div", { "aria-live": "polite" });
  const line = el("p", { class: "soft" });
  const stop = el("button", { type: "button", class: "small", onclick: () => call(`${feedPath(name)}/verify`, undefined, "DELETE").then(() => set(line, "It ends with the table under way…"), () => {}) }, "Cancel the verification");
  const running = el("div", { class: "card" }, el("h2", {}, "Verifying every row…"), line, stop);
  const button = el("button", { type: "button", "data-verb": "verify", onclick: () => begin() }, "Verify");
  let mine = false;

  function verdict(found) {
    const different = found.tables.filter((table) => !table.identical);
    const wrong = found.tables.some((table) => !table.identical && !table.unchecked);
    const words = found.identical ? ["identical", "good"] : wrong ? ["different", "bad"] : ["not all checked", "warn"];
    const tell = (table) => table.unchecked || `${count(table.missing, "row is missing", "rows are missing")}, ${number(table.unexpected)} unexpected, ${number(table.different)} different; keys ${table.sample_keys.join(", ")}`;
    return el("div", { class: "card" }, el("h2", {}, "Verified ", chip(...words)), el("p", {}, `${count(found.rows, "row")} of ${count(found.tables.length, "table")} identical as of ${found.checkpoint_time}`),
      different.map((table) => trouble({ message: `${table.name}: ${tell(table)}`, hint: table.unchecked ? "" : "Resnapshot the table: what differs is delivered." }, table.unchecked ? "warn" : "bad")));
  }
  async function begin() {
    if (mine) return;
    mine = true;
    show({ under_way: true, progress: [] });
    try {
      const found = await call(`${feedPath(name)}/verify`, {});
      place.replaceChildren(verdict(found));
    } catch (error) { place.replaceChildren(trouble(error, error.code === "CANCELLED" ? "warn" : "bad")); } finally { mine = false; button.disabled = false; again(); }
  }
  // Somebody else's is shown as well: there is one at a time.
  function show(told) {
    const busy = mine || told.under_way;
    button.disabled = busy;
    if (busy && !running.isConnected) { set(line, "reading…"); place.replaceChildren(running); }
    if (told.progress.length) set(line, told.progress[told.progress.length - 1]);
    if (!busy && running.isConnected) running.remove();
  }
  return { place, button, begin, show };
}

// ---- what is wrong, and what happened

function troubles(feed) {
  const wrong = [];
  const whole = feed.problem && ["failed", "retrying"].includes(feed.problem.stage);
  if (feed.error) wrong.push(trouble({ ...feed.error, hint: whole && feed.problem.stage === "failed" ? feed.problem.hint : feed.error.hint }, feed.retry ? "warn" : "bad"));
  if (feed.retry) wrong.push(trouble({ message: `It failed ${count(feed.retry.failures, "time")} in a row since ${when(feed.retry.since_ms)}; it is tried again at ${when(feed.retry.next_attempt_ms)}.` }, "warn"));
  if (feed.problem && !(whole && feed.error)) wrong.push(trouble({ message: `${feed.problem.stage}: ${feed.problem.text} (since ${when(feed.problem.since_ms)})`, hint: feed.problem.hint }, "warn"));
  for (const line of feed.capture_problems || []) wrong.push(trouble({ message: line }, "warn"));
  for (const one of feed.uncovered || []) wrong.push(trouble({ message: `The checkpoint does not cover ${one.name}: it is ${one.state}.` }, "warn"));
  return wrong;
}

const HISTORY_SHOWN = 100;
const happened = (entry) => (entry.what === "state" && entry.new ? `became ${entry.new.split(", ").pop()}` : `${entry.what}${entry.new ? `: ${entry.new}` : ""}`);

export function feedDetail(name) {
  const state = chip("…");
  const wrong = el("div");
  const made = Object.fromEntries([["lag", "lag of the checkpoint"], ["rate", "rows per second"], ["rows", "rows delivered"], ["bytes", "bytes"], ["files", "files"], ["windows", "windows"], ["tables", "tables"], ["ranges", "ranges"], ["kept", "history is kept for"]].map(([key, label]) => [key, figure(label)]));
  const rates = chart(`Rows per second of ${name}`, "chart", (top) => number(top));
  const lags = chart(`Lag of ${name}`, "chart", (top) => span(top));
  const buttons = Object.fromEntries(Object.entries(VERBS).map(([verb, known]) => [verb, el("button", { type: "button", "data-verb": verb, "data-kind": known.kind === "danger" ? "danger" : undefined, onclick: () => act(verb) }, known.label)]));
  const verifying = verification(name, () => view.again());
  const tables = el("tbody");
  const history = el("tbody");
  const config = el("pre", { tabindex: "0", "aria-label": "Configuration" });
  const target = el("p", { class: "soft mono" });
  const bar = el("progress", { max: "1", value: "0", "aria-label": "First state" });
  const read = el("span");
  const snapshot = el("div", { class: "card", hidden: true }, el("h2", {}, "Reading its first state"), bar, el("p", { class: "soft" }, read));
  const find = el("input", { type: "search", "aria-label": "Find tables", placeholder: "Find tables…", oninput: () => filter() });
  const node = el("div", {}, el("h1", {}, el("bdi", {}, name), " ", state), target, wrong,
    el("div", { class: "bar" }, buttons.resume, buttons.pause, verifying.button, el("span", { class: "gap" }), buttons.alter, buttons.clone, buttons.move, el("span", { class: "gap" }), buttons.reset, buttons.cancel, buttons.remove), verifying.place, snapshot,
    el("div", { class: "card grid" }, Object.values(made).map(([shown]) => shown)),
    el("div", { class: "columns" }, el("div", { class: "card" }, el("h2", {}, "Rows per second"), rates), el("div", { class: "card" }, el("h2", {}, "Lag"), lags)),
    el("div", { class: "card" }, el("div", { class: "bar" }, el("h2", {}, "Tables"), find), scrolled("Tables", el("table", { class: "stack" }, heads(["Table", "State", "Lag", "Rows", "Bytes", "Files", "What may be done"], [2, 3, 4, 5]), tables))),
    el("div", { class: "card" }, el("h2", {}, "What happened"), scrolled("What happened", el("table", { class: "stack" }, heads(["When", "What", "Who", "Why"], []), history))),
    el("div", { class: "card" }, el("h2", {}, "Configuration"), config));
  const rows = new Map();
  let last = null;

  const act = (verb) => last && askVerb(verb, last).then((done) => done && view.again());
  function tableVerb(table, verb) {
    const [label, text] = TABLE_VERBS[verb];
    return ask({ title: `${label} ${table}?`, text, fields: [REASON], button: label, kind: verb === "exclude" ? "danger" : "main", send: async (told) => {
      await call(`${feedPath(name)}/tables/${encodeURIComponent(table)}/${verb}`, { reason: told.reason });
      notice(`${table}: ${verb} is asked for`);
    } }).then((done) => done && view.again());
  }
  function filter() {
    const wanted = find.value.trim().toLowerCase();
    for (const [table, one] of rows) one.row.hidden = Boolean(wanted) && !table.toLowerCase().includes(wanted);
  }
  function showVerbs(feed) {
    const over = OVER.includes(feed.requested_state) || OVER.includes(feed.state);
    const paused = feed.requested_state === "paused";
    const resumes = paused || feed.error || feed.retry;
    for (const [verb, button] of Object.entries(buttons)) button.hidden = over && !["clone", "remove"].includes(verb);
    if (over) return;
    buttons.pause.hidden = paused;
    buttons.resume.hidden = !resumes;
    buttons.resume.dataset.kind = resumes ? "main" : "";
  }
  function showTables(feed) {
    const names = new Set(feed.tables.map((table) => table.name));
    for (const [known, one] of rows) if (!names.has(known)) { one.row.remove(); rows.delete(known); }
    for (const table of feed.tables) {
      let one = rows.get(table.name);
      if (!one) { one = tableRow(name, table.name, tableVerb); rows.set(table.name, one); tables.append(one.row); }
      one.show(table);
    }
    find.hidden = rows.size < 8;
    filter();
  }

  const view = {
    node,
    title: name,
    again: () => {},
    poll: async () => {
      const [feed, told, verified] = await Promise.all([call(feedPath(name)), call(`${feedPath(name)}/history`), call(`${feedPath(name)}/verify`).catch(() => ({ under_way: false, progress: [] }))]);
      return { feed, history: told.history, verified };
    },
    show({ feed, history: entries, verified }) {
      if (feed.members) {
        node.replaceChildren(el("h1", {}, `${name} `, chip(feed.state)), el("p", {}, "One feed with several targets; each is a feed of its own:"), el("ul", {}, feed.members.map((member) => el("li", {}, el("a", { href: feedLink(member.name) }, member.name), ` → ${member.target} `, chip(...stateOf(member))))));
        return;
      }
      last = feed;
      remember([feed]);
      setChip(state, ...stateOf(feed));
      set(target, `${feed.source}  →  ${feed.target}${feed.owner ? `  on  ${feed.owner}` : ""}`);
      const found = troubles(feed);
      const text = found.map((one) => one.textContent).join("\n");
      if (wrong.dataset.text !== text) { wrong.dataset.text = text; wrong.replaceChildren(...found); }
      const perSecond = rate(name);
      const figures = { lag: span(feed.lag_s), rate: perSecond === null ? "–" : number(perSecond), rows: number(feed.rows), bytes: bytes(feed.bytes), files: number(feed.files), windows: number(feed.windows), tables: number(feed.tables.length), ranges: number(feed.dispatchers), kept: feed.history ? span(feed.history.remaining_s) : "–" };
      for (const [key, value] of Object.entries(figures)) set(made[key][1], value);
      rates.show(remembered(name, "rate"));
      lags.show(remembered(name, "lag"));
      showVerbs(feed);
      snapshot.hidden = !feed.snapshot;
      if (feed.snapshot) {
        bar.max = Math.max(1, feed.snapshot.parts);
        bar.value = feed.snapshot.parts_done;
        set(read, `${number(feed.snapshot.parts_done)} of ${count(feed.snapshot.parts, "part")}, ${count(feed.snapshot.rows, "row")}`);
      }
      verifying.show(verified);
      showTables(feed);
      const newest = JSON.stringify([entries.length, entries[entries.length - 1]]);
      if (history.dataset.newest !== newest) {
        history.dataset.newest = newest;
        history.replaceChildren(...entries.slice(-HISTORY_SHOWN).reverse().map((entry) => el("tr", {}, el("td", { "data-label": "When" }, when(entry.at_ms)), el("td", { "data-label": "What" }, happened(entry)), el("td", { "data-label": "Who" }, entry.by), el("td", { "data-label": "Why" }, entry.why))));
      }
      set(config, JSON.stringify(feed.config, null, 2));
    },
    key(key) {
      if (key === "p" && !(buttons.resume.hidden && buttons.pause.hidden)) { act(buttons.resume.hidden ? "pause" : "resume"); return true; }
      if (key === "v") { verifying.begin(); return true; }
      return false;
    },
  };
  return view;
}
