// Where the space is, and what is in it: databases, collections, fields, indexes, and a box for reading.
import { h, add, get, post, table, tag, count, bytes, number, time, show as text, shortened, failure, date, micros } from "/core.js";
import { t } from "/words.js";
import { tree } from "/tree.js";
import { parse } from "/relaxed.js";

const link = (...parts) => "#" + ["data", ...parts].map(encodeURIComponent).join("/");

export async function show(view) {
  const [db, collection] = view.rest;
  const list = h("ul.list");
  const place = h("section");
  add(view.root, [h("h1", {}, t("view.data")), h("div.split", {}, h("nav.card", { "aria-label": t("databases") }, list), place)]);
  const all = await get("databases");
  list.append(...all.databases.map((d) => h("li", {}, h("button", {
    "aria-current": d.name === db ? "true" : null, onclick: () => { location.hash = link(d.name); },
  }, h("span", {}, d.name), h("span.soft", {}, bytes(d.sizeOnDisk))))));
  if (!all.databases.length) list.append(h("li.soft", {}, t("nothing")));
  if (db && collection) await one(place, db, collection);
  else if (db) await collections(place, db, "", 0);
  else place.append(h("p.card.soft", {}, t("data.choose")));
}

async function collections(place, db, filter, from) {
  const answer = await get("collections", { db, filter, from });
  const rows = answer.collections.map((c) => [
    h("a", { href: link(db, c.name) }, c.name),
    [c.type !== "collection" && tag(c.type), c.sharded && tag(t("sharded")), c.capped && tag("capped")],
    count(c.count), bytes(c.size), bytes(c.storageSize), count(c.nindexes), bytes(c.totalIndexSize),
  ]);
  const input = h("input", { type: "search", value: filter, "aria-label": t("data.filter"), placeholder: t("data.filter"),
    onchange: (e) => go(e.target.value, 0) });
  const go = (f, n) => collections(place, db, f, n).catch((e) => place.replaceChildren(failure(e)));
  place.replaceChildren(
    h("div.row", {}, input,
      h("button", { disabled: from === 0, onclick: () => go(filter, Math.max(0, from - answer.page)) }, t("before")),
      h("button", { disabled: from + answer.page >= answer.total, onclick: () => go(filter, from + answer.page) }, t("after")),
      h("span.soft", {}, t("data.of", count(answer.total ? from + 1 : 0), count(Math.min(from + answer.page, answer.total)), count(answer.total)))),
    table(`${t("collections")}: ${db}`, [[t("name"), "text"], [""], [t("documents"), "n"], [t("size"), "n"], [t("onDisk"), "n"], [t("indexes"), "n"], [t("indexSize"), "n"]], rows));
}

async function one(place, db, collection) {
  const answer = await get("collection", { db, collection });
  const fields = h("div");
  const paths = [];
  place.append(
    h("h2", {}, h("a", { href: link(db) }, db), ".", collection),
    h("div.cards", {}, [["documents", count(answer.count)], ["size", bytes(answer.size)], ["onDisk", bytes(answer.storageSize)], ["average", bytes(answer.avgObjSize)], ["indexSize", bytes(answer.totalIndexSize)]]
      .map(([name, value]) => h("div.figure", {}, h("span", {}, t(name)), h("b", {}, value)))),
    indexes(answer), query(db, collection, paths), fields);
  schema(fields, db, collection, 1000, paths);
}

function indexes(answer) {
  if (!answer.indexes) return h("p.soft", {}, answer.indexesError || "");
  const kinds = (s) => ["unique", "sparse", "hidden"].filter((k) => s[k]).map((k) => [tag(k), " "]).concat(
    s.expireAfterSeconds !== undefined ? [tag(`TTL ${count(s.expireAfterSeconds)} s`)] : [], s.partialFilterExpression ? [tag("partial")] : []);
  return table(t("indexes"), [[t("name"), "text"], [t("key"), "text"], [t("size"), "n"], [t("index.used"), "n"], [""]],
    answer.indexes.map((i) => [i.name, h("code", {}, text(i.spec.key)), bytes(i.size),
      i.operations === undefined ? "–" : [count(i.operations), i.sinceMillis && h("div.soft.small", {}, t("index.since", time(i.sinceMillis)))],
      [kinds(i.spec), i.unused && tag(t("index.unused"), "warn")]]));
}

async function schema(place, db, collection, sample, paths) {
  place.replaceChildren(h("p.soft", {}, t("loads")));
  let answer;
  try {
    answer = await post("schema", { db, collection, sample });
  } catch (e) {
    place.replaceChildren(failure(e));
    return;
  }
  paths.splice(0, paths.length, ...answer.fields.map((f) => f.path.replaceAll("[]", "")).filter((p, i, all) => p && all.indexOf(p) === i));
  const share = (n) => (n >= 0.9995 ? "100 %" : (n * 100).toFixed(1) + " %");
  const rows = answer.fields.map((f) => [
    h("code", {}, f.path), share(f.share),
    f.types.map((x) => [tag(x.share < 1 ? `${x.type} ${share(x.share)}` : x.type, f.types.length > 1 ? "warn" : ""), " "]),
    shortened((f.examples || []).map((e) => text(e)).join(", "), 120),
    (f.indexes || []).map((i) => [i.position === 0 ? i.name : `(${i.name})`, " "]),
  ]);
  const choose = h("select", { "aria-label": t("schema.sample"), onchange: (e) => schema(place, db, collection, Number(e.target.value), paths) },
    [100, 1000, 10000].map((n) => h("option", { value: n }, count(n))));
  choose.value = String(sample);
  place.replaceChildren(h("div.row", {}, h("h2", {}, t("schema")), h("label", {}, t("schema.sample"), " ", choose), h("span.soft", {}, t("schema.looked", count(answer.sampled)))),
    table(t("schema"), [[t("field"), "text"], [t("share"), "n"], [t("types"), "text"], [t("examples"), "text"], [t("indexes"), "text"]], rows));
}

function query(db, collection, paths) {
  const area = (name, value, rows) => completed(h("textarea", { name, rows, spellcheck: "false", "aria-label": t("query." + name), value }), paths);
  const filter = area("filter", "{}", 3), projection = area("projection", "", 1), sort = area("sort", "", 1), pipeline = area("pipeline", "[]", 5);
  const limit = h("input", { type: "number", min: 1, max: 200, value: 20, "aria-label": t("query.limit") });
  const mode = h("select", { "aria-label": t("query.mode") }, h("option", { value: "find" }, "find"), h("option", { value: "pipeline" }, "aggregate"));
  const out = h("div", { "aria-live": "polite" });
  const find = h("div", {}, label("query.filter", filter), h("div.row", {}, label("query.projection", projection), label("query.sort", sort)));
  const stages = h("div", { hidden: true }, label("query.pipeline", pipeline));
  mode.addEventListener("change", () => { find.hidden = mode.value !== "find"; stages.hidden = mode.value === "find"; });
  const body = () => {
    const read = (box) => { const v = box.querySelector("textarea").value.trim(); return v ? parse(v) : null; };
    const asked = { db, collection, limit: Number(limit.value) || 20 };
    return mode.value === "find" ? { ...asked, filter: read(filter), projection: read(projection), sort: read(sort) } : { ...asked, pipeline: read(pipeline) || [] };
  };
  const run = async (path, draw) => {
    out.replaceChildren(h("p.soft", {}, t("loads")));
    try {
      const answer = await post(path, body());
      out.replaceChildren();
      add(out, [draw(answer)]);
    } catch (e) {
      out.replaceChildren(failure(e));
    }
  };
  const documents = (a) => [h("p.soft", {}, t("query.got", count(a.documents.length), micros(a.micros))), a.documents.map((d) => h("pre", {}, text(d, 2)))];
  const form = h("form.card", { onsubmit: (e) => { e.preventDefault(); run("query", documents); } },
    h("h2", {}, t("query")), find, stages,
    h("div.row", {}, h("label", {}, t("query.mode"), h("br"), mode), h("label", {}, t("query.limit"), h("br"), limit), h("button.main", {}, t("query.run")),
      h("button", { type: "button", onclick: () => run("explain", (a) => tree(a.explain)) }, t("query.explain"))), out);
  form.addEventListener("keydown", (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) form.requestSubmit(); });
  return form;
}

const label = (key, box) => h("div.grow", {}, h("label", {}, t(key)), box);

const OPERATORS = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$and", "$or", "$nor", "$not", "$exists", "$type", "$regex", "$elemMatch", "$all", "$size", "$expr",
  "$match", "$group", "$sort", "$limit", "$skip", "$project", "$unwind", "$lookup", "$count", "$addFields", "$sum", "$avg", "$min", "$max", "$first", "$push"];

/** A text area that offers fields and operators for the word that is being typed. */
function completed(area, paths) {
  const list = h("ul.options", { role: "listbox", hidden: true, id: "o" + Math.random().toString(36).slice(2) });
  let found = [], at = 0;
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  const word = () => /[\w$.]*$/.exec(area.value.slice(0, area.selectionStart))[0];
  const close = () => { list.hidden = true; found = []; area.removeAttribute("aria-activedescendant"); };
  const draw = () => {
    list.replaceChildren(...found.map((f, i) => h("li", { role: "option", id: `${list.id}-${i}`, "aria-selected": String(i === at), onmousedown: (e) => { e.preventDefault(); at = i; accept(); } }, f)));
    list.hidden = !found.length;
    if (found.length) area.setAttribute("aria-activedescendant", `${list.id}-${at}`);
  };
  const accept = () => {
    const w = word(), end = area.selectionStart;
    const before = area.value.slice(0, end - w.length);
    let put = found[at];
    const quoted = /["']$/.test(before);
    if (!quoted && !/^[A-Za-z_$][\w$]*$/.test(put)) put = JSON.stringify(put);
    area.value = before + put + area.value.slice(end);
    area.selectionStart = area.selectionEnd = before.length + put.length;
    close();
  };
  area.addEventListener("input", () => {
    const w = word();
    const pool = w.startsWith("$") ? OPERATORS : paths;
    found = w ? pool.filter((p) => p.toLowerCase().startsWith(w.toLowerCase()) && p !== w).slice(0, 12) : [];
    at = 0;
    draw();
  });
  area.addEventListener("keydown", (e) => {
    if (list.hidden) return;
    if (e.key === "ArrowDown" || e.key === "ArrowUp") { e.preventDefault(); at = (at + (e.key === "ArrowDown" ? 1 : found.length - 1)) % found.length; draw(); }
    else if ((e.key === "Enter" && !e.ctrlKey) || e.key === "Tab") { e.preventDefault(); accept(); }
    else if (e.key === "Escape") close();
  });
  area.addEventListener("blur", close);
  return h("div.box", {}, area, list);
}
