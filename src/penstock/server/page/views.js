// The views but that of one feed: each is made once, and shows what it is given again and again without making anything anew that did not change.
import { feedLink, stateOf } from "/page/feed.js";
import { ask, bytes, call, chart, chip, count, el, notice, number, rate, remember, remembered, scrolled, set, setChip, span, trouble } from "/page/parts.js";

// ---- the list of feeds

const RANK = { bad: 0, warn: 1, good: 2, idle: 3 };

export function feedList() {
  const search = el("input", { type: "search", id: "search", "aria-label": "Find feeds by name, state or server", placeholder: "Find feeds…  ( / )", oninput: () => view.filter() });
  const counted = el("span", { class: "soft" });
  const states = el("div", { class: "states", role: "group", "aria-label": "Show feeds by state" });
  const body = el("tbody");
  const empty = el("div", { class: "card", hidden: true }, el("h2", {}, "No feed yet"), el("p", {}, "A feed carries the changes of tables to a target: files, a lake, a database, a topic."), el("a", { class: "button", "data-kind": "main", href: "#/new" }, "Create the first one"));
  const table = el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["Feed", "State", "Lag", "Rows/s", "Last minutes", "Rows", "Bytes", "Files", "Server"].map((title, at) => el("th", { scope: "col", class: at > 1 && at < 8 && at !== 4 ? "number" : undefined }, title)))), body);
  const card = el("div", { class: "card" }, scrolled("Feeds", table));
  const bar = el("div", { class: "bar" }, search, states, counted);
  const node = el("div", {}, el("h1", {}, "Feeds"), bar, empty, card);
  const rows = new Map();
  let [selected, chosen, order] = ["", "", ""];

  function rowOf(name) {
    const cells = { state: chip(""), lag: el("td", { class: "number", "data-label": "Lag" }), rate: el("td", { class: "number", "data-label": "Rows/s" }), spark: chart(`Rows per second of ${name} over the last minutes`, "spark"), rows: el("td", { class: "number", "data-label": "Rows" }), bytes: el("td", { class: "number", "data-label": "Bytes" }), files: el("td", { class: "number", "data-label": "Files" }), owner: el("div", { class: "soft short" }), why: el("div", { class: "soft" }) };
    const row = el("tr", {}, el("td", { class: "wide", "data-label": "Feed" }, el("a", { class: "name", href: feedLink(name) }, name), cells.why), el("td", { "data-label": "State" }, cells.state), cells.lag, cells.rate, el("td", { "data-label": "Last minutes" }, cells.spark), cells.rows, cells.bytes, cells.files, el("td", { "data-label": "Server" }, cells.owner));
    return { row, cells, text: "", state: "", rank: 3 };
  }

  function showOne(feed) {
    let one = rows.get(feed.name);
    if (!one) { one = rowOf(feed.name); rows.set(feed.name, one); }
    const { cells } = one;
    const [state, tone] = stateOf(feed);
    setChip(cells.state, state, tone);
    set(cells.lag, span(feed.lag_s));
    const perSecond = rate(feed.name);
    set(cells.rate, perSecond === null ? "–" : number(perSecond));
    cells.spark.show(remembered(feed.name, "rate"));
    set(cells.rows, number(feed.rows));
    set(cells.bytes, bytes(feed.bytes));
    set(cells.files, number(feed.files));
    set(cells.owner, feed.owner || "–");
    if (cells.owner.title !== feed.owner) cells.owner.title = feed.owner;
    const wrong = feed.error || feed.problem;
    set(cells.why, wrong ? `${wrong.code ? `[${wrong.code}] ` : ""}${wrong.message || wrong.text || ""}`.slice(0, 160) : feed.snapshot ? `reading its first state: ${number(feed.snapshot.parts_done)} of ${number(feed.snapshot.parts)} parts` : "");
    one.text = `${feed.name} ${state} ${feed.owner}`.toLowerCase();
    [one.state, one.rank] = [state, RANK[cells.state.dataset.tone]];
  }

  // What is wrong stands first, however many feeds there are.
  function sort() {
    const names = [...rows.keys()].sort((a, b) => rows.get(a).rank - rows.get(b).rank || (a < b ? -1 : 1));
    if (order === names.join("\n")) return;
    order = names.join("\n");
    const held = document.activeElement;
    body.append(...names.map((name) => rows.get(name).row));
    if (body.contains(held)) held.focus();
  }

  function showStates() {
    const found = new Map();
    for (const one of rows.values()) found.set(one.state, (found.get(one.state) || 0) + 1);
    if (chosen && !found.has(chosen)) chosen = "";
    const text = JSON.stringify([...found, chosen]);
    states.hidden = found.size < 2;
    if (states.dataset.text === text) return;
    const held = states.contains(document.activeElement) ? document.activeElement.dataset.state : null;
    states.dataset.text = text;
    states.replaceChildren(...[...found].sort().map(([state, many]) => el("button", { type: "button", class: "small", "data-state": state, "aria-pressed": String(state === chosen), onclick: () => { chosen = chosen === state ? "" : state; showStates(); view.filter(); } }, `${state} ${number(many)}`)));
    if (held !== null) states.querySelector(`[data-state="${CSS.escape(held)}"]`)?.focus();
  }

  const view = {
    node,
    title: "Feeds",
    poll: async () => (await call("/api/v1/feeds")).feeds,
    show(feeds) {
      remember(feeds, true);
      const names = new Set(feeds.map((feed) => feed.name));
      for (const [name, one] of rows) if (!names.has(name)) { one.row.remove(); rows.delete(name); }
      feeds.forEach(showOne);
      sort();
      showStates();
      empty.hidden = feeds.length > 0;
      card.hidden = bar.hidden = !feeds.length;
      const wrong = [...rows.values()].filter((one) => one.rank === 0).length;
      view.title = wrong ? `(${wrong} failed) Feeds` : "Feeds";
      view.filter();
    },
    filter() {
      const wanted = search.value.trim().toLowerCase();
      let [shown, perSecond] = [0, 0];
      for (const [name, one] of rows) {
        const fits = (!wanted || one.text.includes(wanted)) && (!chosen || one.state === chosen);
        if (one.row.hidden === fits) one.row.hidden = !fits;
        if (fits) { shown += 1; perSecond += rate(name) || 0; }
      }
      set(counted, rows.size ? `${number(shown)} of ${number(rows.size)}, ${number(perSecond)} rows/s` : "");
    },
    key(key) {
      const names = [...body.rows].filter((row) => !row.hidden).map((row) => row.querySelector("a").textContent);
      const at = names.indexOf(selected);
      if (key === "/") { search.focus(); return true; }
      if ((key === "j" || key === "k") && names.length) {
        if (rows.has(selected)) rows.get(selected).row.removeAttribute("data-selected");
        selected = names[Math.min(names.length - 1, Math.max(0, at + (key === "j" ? 1 : -1)))];
        const { row } = rows.get(selected);
        row.setAttribute("data-selected", "true");
        row.querySelector("a").focus();
        return true;
      }
      return false;
    },
  };
  return view;
}

// ---- a new feed

export function newFeed() {
  const field = (label, note, input) => el("label", {}, label, note ? el("small", {}, ` ${note}`) : null, input);
  const name = el("input", { id: "new-name", required: true, autocomplete: "off", placeholder: "orders", maxlength: "63", spellcheck: "false" });
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
    outcome.replaceChildren(el("p", { class: "soft" }, "The source is asked…"));
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    try {
      await work(tree());
    } catch (error) {
      outcome.replaceChildren(trouble(error instanceof SyntaxError ? { code: "CONFIG_INVALID", message: `More settings: no JSON: ${error.message}` } : error));
    } finally {
      for (const button of form.querySelectorAll("button")) button.disabled = false;
    }
  }
  const preview = () => attempt(async (config) => {
    const told = await call("/api/v1/feeds/preview", config);
    outcome.replaceChildren(el("div", { class: "card" }, el("h2", {}, `${count(told.tables.length, "table")}, ${count(told.dispatchers, "range")}, ${count(told.tasks_at_once, "task")} at once`),
      el("ol", {}, told.plan.map((step) => el("li", {}, step))),
      scrolled("Tables that it would have", el("table", {}, el("thead", {}, el("tr", {}, ["Table", "Key", "Columns"].map((title) => el("th", { scope: "col" }, title)))),
        el("tbody", {}, told.tables.map((table) => el("tr", {}, el("td", {}, el("bdi", { class: "name" }, table.name)), el("td", {}, table.columns.filter((column) => column.key).map((column) => column.name).join(", ") || "none: rows are counted"), el("td", { class: "soft" }, table.columns.map((column) => `${column.name} ${column.type}`).join(", ")))))))));
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

const FACTS = { free_bytes: (value) => `${bytes(value)} free`, jobs_waiting: (value) => `${number(value)} waiting`, running: () => "", open: (value) => (value ? "open" : "not open") };
const JOBS_SHOWN = 8;
const fact = ([key, value]) => (FACTS[key] ? FACTS[key](value) : `${typeof value === "number" ? number(value) : value} ${key.replaceAll("_", " ")}`);

function factsOf(name, one) {
  if (name !== "feeds") return Object.entries(one.facts).map(fact);
  const found = new Map();
  for (const state of Object.values(one.facts)) found.set(state, (found.get(state) || 0) + 1);
  return found.size ? [...found].sort().map(([state, many]) => `${number(many)} ${state}`) : ["none here"];
}

export function servers() {
  const health = el("div", { class: "grid wide" });
  const jobs = el("ul", { class: "mono" });
  const spark = el("div", { class: "card" }, el("h2", {}, "Spark jobs"), jobs);
  const list = el("tbody");
  const drain = el("button", { type: "button", onclick: () => toggle() }, "Drain this server");
  const seen = new Map();
  let draining = false;
  const toggle = () => ask({ title: draining ? "Take feeds again?" : "Drain this server?", text: draining ? "It takes feeds again that no other server has." : "Its feeds go to other servers, gracefully; it takes none until you say so.", button: draining ? "End the drain" : "Drain", send: () => call("/api/v1/server/drain", undefined, draining ? "DELETE" : "POST") }).then((done) => done && view.again());
  const view = {
    node: el("div", {}, el("h1", {}, "Servers"), el("div", { class: "card" }, el("h2", {}, "Health of this server"), health), spark, el("div", { class: "card" }, el("h2", {}, "Servers of this meta database"), scrolled("Servers", el("table", { class: "stack" }, el("thead", {}, el("tr", {}, ["Server", "State", "Address", "Feeds"].map((title) => el("th", { scope: "col" }, title)))), list))), drain),
    title: "Servers",
    again: () => {},
    poll: async () => Promise.all([call("/api/v1/health?quiet=yes"), call("/api/v1/servers"), call("/api/v1/server/drain")]),
    show([told, found, drained]) {
      health.replaceChildren(...Object.entries(told.components).map(([name, one]) => el("div", { class: "figure" }, el("b", {}, name, " ", chip(one.ok ? "ok" : "failing")), el("span", {}, [one.detail, one.hint, ...factsOf(name, one)].filter(Boolean).map((text) => text.replace(/\.$/, "")).join("; ")))));
      const running = (told.components.spark && told.components.spark.facts.running) || [];
      for (const text of running) { const what = text.split("; ")[0]; seen.delete(what); seen.set(what, [new Date(), text]); }
      for (const what of [...seen.keys()].slice(0, -JOBS_SHOWN)) seen.delete(what);
      // Most jobs end between two looks: those that were seen stay for a while, with when that was.
      jobs.replaceChildren(...[...seen.values()].reverse().map(([at, text]) => el("li", {}, `${at.toLocaleTimeString()}  ${text}`)));
      if (!seen.size) jobs.append(el("li", {}, "none was seen yet; most take less than a second"));
      spark.hidden = !told.components.spark;
      // Who stands on a link of the list with the keyboard stays there.
      const text = JSON.stringify(found.servers);
      if (list.dataset.text !== text) {
        list.dataset.text = text;
        list.replaceChildren(...found.servers.map((server) => el("tr", {}, el("td", { "data-label": "Server" }, server.owner, server.self ? " (this one)" : ""), el("td", { "data-label": "State" }, chip(server.state)), el("td", { class: "soft", "data-label": "Address" }, server.url), el("td", { class: "wide", "data-label": "Feeds" }, server.feeds.length ? server.feeds.flatMap((name) => [el("a", { href: feedLink(name) }, name), " "]) : "none"))));
      }
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
      outcome.replaceChildren(el("div", { class: "card" }, columns.length ? scrolled("What it answered", el("table", {}, el("thead", {}, el("tr", {}, columns.map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, (told.rows || []).map((row) => el("tr", {}, row.map((value) => el("td", {}, value === null ? "–" : String(value)))))))) : el("pre", { tabindex: "0" }, JSON.stringify(told, null, 2))));
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
