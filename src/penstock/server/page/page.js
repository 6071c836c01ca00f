// The page: which view is shown, asking again while somebody looks, and the keyboard.
import { ApiError, call, el, notice, session, setChip, trouble } from "/page/parts.js";
import { feedDetail } from "/page/feed.js";
import { feedList, newFeed, servers, signIn, sql } from "/page/views.js";

const EVERY_MS = 2000;
const main = document.getElementById("main");
const health = document.getElementById("health");
const leave = document.getElementById("leave");
let view = null;
let timer = 0;
let turn = 0;
let away = null;
let answered = null;

// The address that `penstock page` prints carries a token behind the #, which no browser sends anywhere. It leaves the address at once.
const handed = /^#token=([\w.~-]+)$/.exec(location.hash);
if (handed) {
  session.token = handed[1];
  history.replaceState(null, "", "/#/");
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function wanted() {
  const [, section, rest] = /^#\/([a-z]*)(?:\/(.*))?$/.exec(location.hash || "#/") || [null, "", ""];
  if (section === "feed" && rest) return ["feeds", feedDetail(decoded(rest))];
  if (section === "new") return ["new", newFeed()];
  if (section === "servers") return ["servers", servers()];
  if (section === "sql") return ["sql", sql()];
  return ["feeds", feedList()];
}

function open() {
  document.getElementById("dialog").close();
  const [section, made] = wanted();
  show(made);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.section === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function show(made) {
  view = made;
  view.again = ask;
  away = null;
  main.removeAttribute("data-stale");
  main.replaceChildren(made.node);
  main.focus({ preventScroll: true });
  ask();
}

async function ask() {
  clearTimeout(timer);
  const mine = ++turn;
  const asked = view;
  try {
    const told = await asked.poll();
    if (mine !== turn || asked !== view) return;
    if (away) { away.remove(); away = null; main.removeAttribute("data-stale"); notice("The server answers again."); }
    answered = new Date();
    asked.show(told);
    document.title = `${asked.title} · Penstock`;
    leave.hidden = !session.token;
  } catch (error) {
    if (mine !== turn || asked !== view) return;
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401 || error.code === "API_TOKEN_REQUIRED") { enter(session.token ? error : null); return; }
    if (error.status === 404) { gone(error); return; }
    if (!away) {
      // What stays on the screen is old, and must not look as if it were not.
      away = trouble(error);
      if (answered) away.append(el("p", {}, `What is below is as it was at ${answered.toLocaleTimeString()}.`));
      main.dataset.stale = "yes";
      main.prepend(away);
    }
  } finally {
    if (mine === turn && asked === view) timer = setTimeout(ask, document.hidden ? 15000 : EVERY_MS);
  }
}

// What was looked at is not there, or not there any more: nothing of it stays on the screen.
function gone(error) {
  show({ node: el("div", {}, el("h1", {}, "There is nothing here"), trouble(error), el("a", { class: "button", href: "#/" }, "All feeds")), title: "Nothing here", poll: async () => null, show() {}, key: () => false });
}

function enter(why) {
  session.token = "";
  leave.hidden = true;
  show(signIn(why, (token) => { session.token = token; open(); look(); }));
  document.getElementById("token").focus();
}

async function look() {
  if (session.token || !document.getElementById("token")) {
    try {
      const told = await call("/api/v1/health?quiet=yes");
      setChip(health, told.status === "ok" ? "healthy" : "not healthy", told.status === "ok" ? "good" : "bad");
    } catch (error) {
      setChip(health, error.status ? "…" : "unreachable", error.status ? "idle" : "bad");
    }
  }
}

const KEYS = [["/", "find a feed"], ["j  k", "next and previous feed"], ["Enter", "open the selected feed"], ["p", "pause or resume the open feed"], ["v", "verify the open feed"], ["n", "new feed"], ["g", "all feeds"], ["s", "servers"], ["?", "this help"], ["Esc", "close, or back to all feeds"]];
function help() {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(el("h2", { id: "dialog-title" }, "Keyboard"), el("table", {}, el("tbody", {}, KEYS.map(([key, does]) => el("tr", {}, el("td", {}, el("kbd", {}, key)), el("td", {}, does))))), el("div", { class: "end" }, el("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey || document.getElementById("dialog").open) return;
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else location.hash = "#/";
    return;
  }
  if (typing || document.getElementById("token")) return;
  if (view.key(event.key)) { event.preventDefault(); return; }
  const places = { n: "#/new", g: "#/", s: "#/servers" };
  if (places[event.key]) { location.hash = places[event.key]; event.preventDefault(); }
  if (event.key === "?") help();
});
document.getElementById("help").addEventListener("click", help);
leave.addEventListener("click", () => enter(null));
window.addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
setInterval(look, 5000);
open();
look();
