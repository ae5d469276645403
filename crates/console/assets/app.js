// The frame: who is logged in, which view is shown, in which language.
import { h, add, get, post, failure } from "/core.js";
import { t, language, setLanguage } from "/words.js";
import * as now from "/now.js";
import * as running from "/running.js";
import * as slow from "/slow.js";
import * as data from "/data.js";
import * as members from "/members.js";
import * as shards from "/shards.js";
import * as log from "/log.js";

const views = { now, running, slow, data, members, shards, log };
const main = document.getElementById("main");
let session = null;
let shown = null;

function chooseTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  open();
}

function frame() {
  document.documentElement.lang = language();
  document.getElementById("skip").textContent = t("skip");
  const languages = h("select", { "aria-label": t("language"), onchange: (e) => { setLanguage(e.target.value); frame(); open(); } },
    h("option", { value: "en" }, "English"), h("option", { value: "zh" }, "中文"));
  languages.value = language() === "zh" ? "zh" : "en";
  const where = session && [session.me || location.host, session.set && `${t("set")} ${session.set}`, t(session.role), session.version];
  const head = document.getElementById("head");
  head.replaceChildren();
  add(head, [
    h("div.bar", {},
      h("span.brand", {}, h("img", { src: "/icon.svg", alt: "" }), "PandoDB"),
      session && h("span.where", {}, where.filter(Boolean).join(" · ")),
      h("span.push", {},
        session?.user && h("span.where", {}, session.user),
        languages,
        h("button", { onclick: chooseTheme, "aria-label": t("theme"), title: t("theme") }, "◐"),
        session?.login && h("button", { onclick: leave }, t("logout")))),
    session && h("nav", { "aria-label": t("views") },
      Object.keys(views).filter((v) => session.views.includes(v)).map((v) =>
        h("a", { href: "#" + v, "aria-current": shown?.name === v ? "page" : null }, t("view." + v)))),
  ]);
}

async function leave() {
  await post("logout", {}).catch(() => null);
  location.hash = "";
  location.reload();
}

function end() {
  if (!shown) return;
  shown.ended = true;
  shown.ends.forEach((f) => f());
}

/** Shows the view that the address names: #data/db/collection. */
async function open() {
  if (!session) return;
  const [asked, ...rest] = location.hash.slice(1).split("/").map((p) => { try { return decodeURIComponent(p); } catch { return ""; } });
  const name = session.views.includes(asked) && views[asked] ? asked : session.views.includes("now") ? "now" : "data";
  end();
  const view = { name, ends: [], ended: false, session, root: h("div"), rest, onEnd: (f) => view.ends.push(f) };
  shown = view;
  frame();
  document.title = `${t("view." + name)} · PandoDB`;
  main.replaceChildren(view.root);
  document.querySelector('nav [aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
  try {
    await views[name].show(view);
  } catch (e) {
    if (!view.ended) view.root.replaceChildren(failure(e));
  }
}

function login() {
  session = null;
  frame();
  document.title = `${t("login")} · PandoDB`;
  const field = (name, label, type, value, auto) =>
    h("label", {}, label, h("input", { name, type, value, autocomplete: auto, required: name !== "source", spellcheck: "false", autocapitalize: "off" }));
  const said = h("p", { role: "alert" });
  const form = h("form.card.login", {
    onsubmit: async (e) => {
      e.preventDefault();
      said.textContent = "";
      const values = Object.fromEntries(new FormData(form));
      try {
        await post("login", values);
        await begin();
      } catch (failed) {
        form.elements.password.value = "";
        said.textContent = failed.status === 401 ? t("wrong") : failed.message;
      }
    },
  },
  h("h1", {}, t("login")),
  field("user", t("user"), "text", "", "username"),
  field("password", t("password"), "password", "", "current-password"),
  field("source", t("source"), "text", "admin", "off"),
  h("button.main", {}, t("login")), said);
  main.replaceChildren(form);
  form.elements.user.focus();
}

async function begin() {
  try {
    session = await get("session");
  } catch (e) {
    if (e.status !== 401) {
      main.replaceChildren(failure(e));
      frame();
      return;
    }
    if (e.body?.login !== false) return login();
    await post("login", {});
    session = await get("session");
  }
  await open();
}

addEventListener("hashchange", () => { open().then(() => main.focus({ preventScroll: true })); });
begin();
