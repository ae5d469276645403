// What people type for a filter, to Extended JSON: names without quotes, single quotes, ObjectId("…"), ISODate("…"),
// NumberLong(…), /patterns/, and a comma too many. Nothing of it is evaluated.

export function parse(source) {
  let at = 0;
  const fail = (what) => { throw new SyntaxError(`${what} (${at + 1})`); };
  const space = () => { while (at < source.length && /\s/.test(source[at])) at++; };
  const take = (c) => { space(); if (source[at] !== c) fail(`'${c}' ?`); at++; };
  const next = () => { space(); return source[at]; };

  function string() {
    const quote = source[at++];
    let out = "";
    while (at < source.length && source[at] !== quote) {
      let c = source[at++];
      if (c === "\\") {
        c = source[at++];
        const known = { n: "\n", t: "\t", r: "\r", b: "\b", f: "\f" }[c];
        if (c === "u") { out += String.fromCharCode(parseInt(source.slice(at, at + 4), 16)); at += 4; continue; }
        out += known ?? c;
      } else out += c;
    }
    if (source[at] !== quote) fail(`${quote} ?`);
    at++;
    return out;
  }
  function word() {
    const m = /^[A-Za-z_$][\w$.]*/.exec(source.slice(at));
    if (!m) fail("?");
    at += m[0].length;
    return m[0];
  }
  function object() {
    const out = [];
    take("{");
    while (next() !== "}") {
      space();
      const name = source[at] === '"' || source[at] === "'" ? string() : word();
      take(":");
      out.push([name, value()]);
      if (next() === ",") at++; else if (next() !== "}") fail("',' ?");
    }
    at++;
    return Object.fromEntries(out);
  }
  function array() {
    const out = [];
    take("[");
    while (next() !== "]") {
      out.push(value());
      if (next() === ",") at++; else if (next() !== "]") fail("',' ?");
    }
    at++;
    return out;
  }
  function called(name) {
    take("(");
    const args = [];
    while (next() !== ")") { args.push(value()); if (next() === ",") at++; }
    at++;
    const [a] = args;
    switch (name) {
      case "ObjectId": return { $oid: String(a) };
      case "ISODate": case "Date": return { $date: new Date(a).toISOString() };
      case "NumberLong": case "Long": return { $numberLong: String(a) };
      case "NumberInt": case "Int32": return { $numberInt: String(a) };
      case "NumberDecimal": case "Decimal128": return { $numberDecimal: String(a) };
      case "UUID": return { $uuid: String(a) };
      default: return fail(name);
    }
  }
  function pattern() {
    const m = /^\/((?:[^/\\\n]|\\.)+)\/([a-z]*)/.exec(source.slice(at));
    if (!m) fail("/ ?");
    at += m[0].length;
    return { $regularExpression: { pattern: m[1], options: m[2] } };
  }
  function value() {
    const c = next();
    if (c === "{") return object();
    if (c === "[") return array();
    if (c === '"' || c === "'") return string();
    if (c === "/") return pattern();
    const n = /^-?\d+(\.\d+)?([eE][-+]?\d+)?/.exec(source.slice(at));
    if (n) {
      at += n[0].length;
      const v = Number(n[0]);
      return Number.isInteger(v) && !Number.isSafeInteger(v) && !n[1] && !n[2] ? { $numberLong: n[0] } : v;
    }
    const w = word();
    if (w === "true" || w === "false") return w === "true";
    if (w === "null" || w === "undefined") return null;
    if (w === "new") { space(); return called(word()); }
    return called(w);
  }
  const out = value();
  space();
  if (at < source.length) fail("?");
  return out;
}
