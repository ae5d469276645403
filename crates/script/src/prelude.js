// What MongoDB's server gives to scripts, besides the language itself: BSON types, printing, and a
// few functions on arrays and objects. Run once in each realm, before anything of a user's.
//
// `__bson.make(tag, a, b)` makes a value of a BSON type, `__bson.unmake(value)` gives its parts back
// as [a, b]. What has a BSON type of its own says so by `_bson`, the type's number.
"use strict";
(function (global, native) {
  const LONGEST_ARRAY = 1 << 24;
  const LONGEST_SEARCH = 1e9;
  // What goes over no more than this is counted as the step that it is.
  const FREE = 1000;

  const hidden = (object, name, value) =>
    Object.defineProperty(object, name, { value, writable: true, configurable: true });
  const typed = (constructor, tag) =>
    Object.defineProperty(constructor.prototype, "_bson", { value: tag });
  const publish = (name, value) => hidden(global, name, value);
  // A class that is called with or without `new`.
  const type = (name, tag, parent, build) => {
    const constructor = function (...args) {
      const self = Object.create(constructor.prototype);
      build(self, ...args);
      return self;
    };
    Object.defineProperty(constructor, "name", { value: name });
    for (const key of Object.getOwnPropertyNames(parent)) hidden(constructor.prototype, key, parent[key]);
    hidden(constructor.prototype, "tojson", function () { return this.toString(); });
    hidden(constructor.prototype, "toJSON", function () { return this.toString(); });
    typed(constructor, tag);
    publish(name, constructor);
    return constructor;
  };
  const hex = (n, length) => Math.floor(n).toString(16).padStart(length, "0");
  const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const bytesOf = (base64) => {
    const out = [];
    let bits = 0, held = 0;
    for (const c of base64) {
      const at = alphabet.indexOf(c);
      if (c === "=") break;
      if (at < 0) throw new Error("BinData: invalid base64 character");
      held = (held << 6) | at;
      bits += 6;
      if (bits >= 8) { bits -= 8; out.push((held >> bits) & 255); held &= (1 << bits) - 1; }
    }
    return out;
  };
  const base64Of = (bytes) => {
    let out = "";
    for (let i = 0; i < bytes.length; i += 3) {
      const [a, b, c] = [bytes[i], bytes[i + 1], bytes[i + 2]];
      out += alphabet[a >> 2] + alphabet[((a & 3) << 4) | ((b || 0) >> 4)];
      out += b === undefined ? "=" : alphabet[((b & 15) << 2) | ((c || 0) >> 6)];
      out += c === undefined ? "=" : alphabet[c & 63];
    }
    return out;
  };
  const fromHex = (text) => {
    if (text.length % 2 || !/^[0-9a-fA-F]*$/.test(text)) throw new Error("invalid hex: " + text);
    return (text.match(/../g) || []).map((pair) => parseInt(pair, 16));
  };

  let counter = Math.floor(Math.random() * 0x1000000);
  const process = hex(Math.random() * 0x100000000, 8) + hex(Math.random() * 0x100, 2);
  const ObjectId = type("ObjectId", 7, {
    toString() { return `ObjectId("${this.str}")`; },
    valueOf() { return this.str; },
    equals(other) { return other instanceof ObjectId && this.str === other.str; },
    getTimestamp() { return new Date(parseInt(this.str.slice(0, 8), 16) * 1000); },
    toHexString() { return this.str; },
  }, (self, text) => {
    if (text instanceof ObjectId) text = text.str;
    if (text === undefined) {
      counter = (counter + 1) % 0x1000000;
      text = hex(Date.now() / 1000, 8) + process + hex(counter, 6);
    }
    if (typeof text !== "string" || !/^[0-9a-fA-F]{24}$/.test(text)) {
      throw new Error("invalid object id: length");
    }
    self.str = text.toLowerCase();
  });
  ObjectId.fromDate = (date) => ObjectId(hex(date.getTime() / 1000, 8) + "0000000000000000");

  const LONG_MIN = -(2n ** 63n), LONG_MAX = 2n ** 63n - 1n;
  const NumberLong = type("NumberLong", 18, {
    valueOf() { return Number(this._v); },
    toNumber() { return Number(this._v); },
    toString() {
      const safe = Number.isSafeInteger(Number(this._v));
      return safe ? `NumberLong(${this._v})` : `NumberLong("${this._v}")`;
    },
    compare(other) {
      const b = NumberLong(other)._v;
      return this._v < b ? -1 : this._v > b ? 1 : 0;
    },
  }, (self, v = 0) => {
    let n;
    if (v instanceof NumberLong) n = v._v;
    else if (typeof v === "bigint") n = v;
    else if (typeof v === "string") {
      if (!/^[+-]?\d+$/.test(v)) throw new Error("could not convert string to long long");
      n = BigInt(v.replace("+", ""));
    } else {
      const f = Math.trunc(Number(v));
      n = Number.isNaN(f) ? 0n : f >= 2 ** 63 ? LONG_MAX : f < -(2 ** 63) ? LONG_MIN : BigInt(f);
    }
    if (n < LONG_MIN || n > LONG_MAX) throw new Error("could not convert string to long long");
    hidden(self, "_v", n);
  });
  const NumberInt = type("NumberInt", 16, {
    valueOf() { return this._v; },
    toNumber() { return this._v; },
    toString() { return `NumberInt(${this._v})`; },
  }, (self, v = 0) => hidden(self, "_v", Number(v) | 0));
  const NumberDecimal = type("NumberDecimal", 19, {
    toString() { return `NumberDecimal("${this._v}")`; },
  }, (self, v = 0) => hidden(self, "_v", native.decimal(v instanceof NumberDecimal ? v._v : String(v))));
  const Timestamp = type("Timestamp", 17, {
    getTime() { return this.t; },
    getInc() { return this.i; },
    toString() { return `Timestamp(${this.t}, ${this.i})`; },
  }, (self, t = 0, i = 0) => {
    for (const part of [t, i]) {
      if (!(part >= 0 && part < 2 ** 32)) throw new Error("Timestamp time and increment must be 32-bit");
    }
    self.t = Math.trunc(t);
    self.i = Math.trunc(i);
  });
  const BinData = type("BinData", 5, {
    subtype() { return this.type; },
    length() { return this.len; },
    base64() { return this._v; },
    hex() { return bytesOf(this._v).map((b) => hex(b, 2)).join(""); },
    toString() {
      if (this.type === 4 && this.len === 16) {
        return `UUID("${this.hex().replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")}")`;
      }
      return `BinData(${this.type},"${this._v}")`;
    },
  }, (self, subtype, base64) => {
    if (!(subtype >= 0 && subtype <= 255)) throw new Error("invalid BinData subtype");
    if (typeof base64 !== "string") throw new Error("BinData data must be a string");
    self.len = bytesOf(base64).length;
    self.type = Math.trunc(subtype);
    hidden(self, "_v", base64);
  });
  publish("HexData", (subtype, text) => BinData(subtype, base64Of(fromHex(text))));
  publish("MD5", (text) => BinData(5, base64Of(fromHex(text))));
  publish("UUID", (text) => {
    if (text === undefined) {
      const bytes = Array.from({ length: 16 }, () => Math.floor(Math.random() * 256));
      bytes[6] = (bytes[6] & 15) | 64;
      bytes[8] = (bytes[8] & 63) | 128;
      return BinData(4, base64Of(bytes));
    }
    const digits = String(text).replace(/-/g, "");
    if (digits.length !== 32) throw new Error("UUID string must have 32 hex characters");
    return BinData(4, base64Of(fromHex(digits)));
  });
  // There is one of each, whether it is called or not.
  const single = (name, tag) => {
    const value = function () { return value; };
    hidden(value, "toString", () => name);
    hidden(value, "tojson", () => `{ "$${name[0].toLowerCase()}${name.slice(1)}" : 1 }`);
    Object.defineProperty(value, "_bson", { value: tag });
    publish(name, value);
    return value;
  };
  const MinKey = single("MinKey", 255);
  const MaxKey = single("MaxKey", 127);
  const Code = type("Code", 13, {
    toString() { return `Code(${JSON.stringify(this.code)})`; },
  }, (self, code, scope) => {
    self.code = String(code);
    if (scope !== undefined) self.scope = scope;
  });
  publish("DBRef", function (collection, id, db) {
    const ref = { $ref: collection, $id: id };
    return db === undefined ? ref : Object.assign(ref, { $db: db });
  });
  publish("ISODate", (text) => {
    if (text === undefined) return new Date();
    const parts = /^(\d{4})-?(\d{2})-?(\d{2})([T ](\d{2})(:?(\d{2})(:?(\d{2}(\.\d+)?))?)?(Z|([+-])(\d{2}):?(\d{2})?)?)?$/
      .exec(text);
    if (!parts) throw new Error("invalid ISO date: " + text);
    const [, y, m, d, , h = 0, , min = 0, , s = 0, , , sign, zh = 0, zm = 0] = parts;
    let ms = Date.UTC(+y, +m - 1, +d, +h, +min, 0) + Math.round(s * 1000);
    if (sign) ms -= (sign === "-" ? -1 : 1) * (+zh * 60 + +zm) * 60000;
    return new Date(ms);
  });

  typed(Date, 9);
  typed(RegExp, 11);
  typed(Function, 13);
  Object.defineProperty(global, "__bson", {
    value: Object.freeze({
      make(tag, a, b) {
        switch (tag) {
          case 5: return BinData(a, b);
          case 7: return ObjectId(a);
          case 9: return new Date(a);
          case 11: try { return new RegExp(a, b.replace(/[^gimsuy]/g, "")); } catch (e) { return { $regex: a, $options: b }; }
          case 13: return Code(a, b);
          case 17: return Timestamp(a, b);
          case 18: return NumberLong(a);
          case 19: return NumberDecimal(a);
          case 127: return MaxKey;
          default: return MinKey;
        }
      },
      unmake(v) {
        switch (v._bson) {
          case 5: return [v.type, v._v];
          case 7: return [v.str];
          case 9: return [v.getTime()];
          case 11: return [v.source, v.flags];
          case 13: return typeof v === "function" ? [String(v)] : [v.code, v.scope];
          case 17: return [v.t, v.i];
          case 18: return [String(v._v)];
          default: return [v._v];
        }
      },
      wellFormed: (text) => text.toWellFormed(),
    }),
  });

  // Printing.
  const quoted = (text) => JSON.stringify(text);
  const tojson = (x, indent = "", oneLine = false, depth = 0) => {
    if (depth > 150) return "[Object]";
    if (x === null) return "null";
    switch (typeof x) {
      case "undefined": return "undefined";
      case "string": return quoted(x);
      case "number": case "boolean": case "bigint": return String(x);
      case "function": return x._bson === 13 ? String(x) : x.tojson();
    }
    if (x instanceof Date) return `ISODate("${x.toISOString()}")`;
    if (x instanceof RegExp) return String(x);
    if (typeof x.tojson === "function" && x.tojson !== Array.tojson) return x.tojson(indent, oneLine);
    const end = oneLine ? " " : "\n", inner = oneLine ? "" : indent + "\t", outer = oneLine ? "" : indent;
    const item = (v) => tojson(v, inner, oneLine, depth + 1);
    if (Array.isArray(x)) {
      if (x.length === 0) return "[ ]";
      return "[" + end + x.map((v) => inner + item(v)).join("," + end) + end + outer + "]";
    }
    const keys = Object.keys(x);
    if (keys.length === 0) return "{ }";
    return "{" + end + keys.map((k) => inner + quoted(k) + " : " + item(x[k])).join("," + end) + end + outer + "}";
  };
  publish("tojson", (x, indent, nolint) => {
    const text = tojson(x, indent || "", nolint === true);
    return text.length < 80 && !indent ? text.replace(/[\t\r\n]+/g, " ") : text;
  });
  publish("tojsononeline", (x) => tojson(x, "", true));
  publish("tojsonObject", global.tojson);
  // Where a script prints to is nobody's business: the server has no console.
  for (const name of ["print", "printjson", "printjsononeline"]) publish(name, () => undefined);
  publish("hex_md5", (text) => native.md5(String(text)));
  publish("sleep", (ms) => native.sleep(Number(ms)));
  publish("gc", () => undefined);
  publish("isString", (x) => typeof x === "string");
  publish("isNumber", (x) => typeof x === "number");
  publish("isObject", (x) => typeof x === "object");
  publish("assert", (truth, message) => {
    if (!truth) throw new Error("assert failed" + (message === undefined ? "" : " : " + message));
  });
  publish("doassert", (message) => { throw new Error(String(message)); });

  // Arrays, objects, strings.
  const sum = (list) => {
    if (list.length === 0) return null;
    let total = list[0];
    for (let i = 1; i < list.length; i++) total += list[i];
    return total;
  };
  const avg = (list) => (list.length === 0 ? null : sum(list) / list.length);
  hidden(Array, "sum", sum);
  hidden(Array, "avg", avg);
  hidden(Array, "stdDev", (list) => {
    const mean = avg(list);
    return Math.sqrt(list.reduce((total, x) => total + (x - mean) ** 2, 0) / list.length);
  });
  hidden(Array, "contains", (list, x) => list.some((y) => y === x));
  hidden(Array, "unique", (list) => list.filter((x, i) => list.indexOf(x) === i));
  hidden(Array, "tojson", (list, indent, nolint) => global.tojson(list, indent, nolint));
  hidden(Object, "extend", (to, from, deep) => {
    for (const k in from) {
      const v = from[k];
      to[k] = deep && v && typeof v === "object" && !("_bson" in v)
        ? Object.extend(Array.isArray(v) ? [] : {}, v, true) : v;
    }
    return to;
  });
  hidden(Object, "merge", (a, b, deep) => Object.extend(Object.extend({}, a, deep), b, deep));
  hidden(Object, "keySet", (o) => Object.keys(o));
  hidden(String.prototype, "ltrim", function () { return this.trimStart(); });
  hidden(String.prototype, "rtrim", function () { return this.trimEnd(); });
  hidden(String.prototype, "pad", function (length, right, fill = " ") {
    return right ? this.padEnd(length, fill) : this.padStart(length, fill);
  });

  // Loops of the engine itself ask nobody whether to go on, so they get no more than they can do
  // in a moment.
  const apply = Function.prototype.call.bind(Function.prototype.apply);
  const bounded = (proto, name, check) => {
    const inner = proto[name];
    if (inner === undefined) return;
    const outer = {
      [name](...args) {
        check(this, args);
        return apply(inner, this, args);
      },
    }[name];
    hidden(proto, name, outer);
  };
  const short = (list) => {
    if (list !== null && list !== undefined && list.length > FREE) {
      if (list.length > LONGEST_ARRAY) throw new RangeError("array is too long");
      native.spend(Number(list.length));
    }
  };
  for (const name of Object.getOwnPropertyNames(Array.prototype)) {
    if (["constructor", "length", "push", "pop", "sort", "toSorted", "flat"].includes(name)) continue;
    if (typeof Array.prototype[name] === "function") bounded(Array.prototype, name, (list, args) => {
      short(list);
      if (name === "concat") for (let i = 0; i < args.length; i++) short(args[i]);
    });
  }
  hidden(Array.prototype, Symbol.iterator, Array.prototype.values);
  const flatten = (list, depth, out) => {
    for (let i = 0; i < list.length; i++) {
      if (!(i in list)) continue;
      if (depth > 0 && Array.isArray(list[i])) flatten(list[i], depth - 1, out);
      else out.push(list[i]);
    }
    return out;
  };
  hidden(Array.prototype, "flat", function (depth = 1) { return flatten(this, Number(depth) || 0, []); });
  for (const name of ["Set", "Map", "WeakSet", "WeakMap"]) {
    const Inner = global[name];
    if (Inner === undefined) continue;
    const Outer = function (list) {
      if (new.target === undefined) throw new TypeError("class constructors must be invoked with 'new'");
      short(list);
      return Reflect.construct(Inner, list === undefined ? [] : [list], new.target);
    };
    Outer.prototype = Inner.prototype;
    hidden(Inner.prototype, "constructor", Outer);
    publish(name, Outer);
  }
  bounded(String, "raw", (_, args) => short(args[0] && args[0].raw));
  const FEW = 10000;
  const byText = (a, b) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const [x, y] = [String(a), String(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  };
  for (const name of ["sort", "toSorted"]) {
    bounded(Array.prototype, name, (list, args) => {
      short(list);
      if (args[0] === undefined && list !== null && list !== undefined && list.length > FEW) args[0] = byText;
    });
  }
  for (const name of ["from", "of"]) bounded(Array, name, (_, args) => short(args[0]));
  const search = (text, args) => {
    if (typeof text === "string" && text.length > FREE) native.spend(text.length);
    if (typeof args[0] === "string" && String(text).length * args[0].length > LONGEST_SEARCH) {
      throw new RangeError("text is too long to search");
    }
  };
  for (const name of ["indexOf", "lastIndexOf", "includes", "split", "replace", "replaceAll"]) {
    bounded(String.prototype, name, search);
  }
});
