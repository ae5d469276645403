//! BSON to JavaScript and back.
//!
//! Numbers of 32 bits and doubles are JavaScript's numbers, and all its numbers are doubles on the way
//! back, as in MongoDB. What the language has no type for is an object of a class of `prelude.js`.
//!
//! Invariant: whatever a script made of its realm, what comes back is well-formed BSON of at most
//! [`MAX_BYTES`], or an error: nothing here trusts a property that a script may have set.

use crate::fault::ScriptFault;
use bson::{Decimal128, Doc, ObjectId, Val, Writer, tag};
use errors::err;
use rquickjs::object::Filter;
use rquickjs::{Array, Ctx, Function, IntoJs, Object, Value};

/// Levels that a value may have, as in MongoDB.
const MAX_DEPTH: usize = 150;
/// Bytes of one value that comes back.
const MAX_BYTES: usize = 16 << 20;

type Result<T> = std::result::Result<T, ScriptFault>;

fn helper<'js>(ctx: &Ctx<'js>, name: &str) -> rquickjs::Result<Function<'js>> {
    let helpers: Object<'js> = ctx.globals().get("__bson")?;
    helpers.get(name)
}

/// A value for a script.
pub fn to_js<'js>(ctx: &Ctx<'js>, v: Val<'_>) -> rquickjs::Result<Value<'js>> {
    let make = |a: Value<'js>, b: Value<'js>| helper(ctx, "make")?.call((i32::from(v.tag), a, b));
    let none = || Value::new_undefined(ctx.clone());
    let text = |s: &str| rquickjs::String::from_str(ctx.clone(), s).map(|s| s.into_value());
    match v.tag {
        tag::DOUBLE => Ok(Value::new_number(
            ctx.clone(),
            v.as_f64().unwrap_or(f64::NAN),
        )),
        tag::INT32 => Ok(Value::new_int(ctx.clone(), v.as_i32().unwrap_or(0))),
        tag::STRING => text(v.as_str().unwrap_or("")),
        tag::SYMBOL => text(&String::from_utf8_lossy(v.str_bytes().unwrap_or(&[]))),
        tag::DOCUMENT => doc_to_js(ctx, v.as_doc().unwrap_or(Doc::EMPTY)).map(Object::into_value),
        tag::ARRAY => {
            let out = Array::new(ctx.clone())?;
            for (i, e) in v.as_array().unwrap_or(Doc::EMPTY).values().enumerate() {
                out.set(i, to_js(ctx, e)?)?;
            }
            Ok(out.into_value())
        }
        tag::BOOL => Ok(Value::new_bool(ctx.clone(), v.as_bool().unwrap_or(false))),
        tag::NULL => Ok(Value::new_null(ctx.clone())),
        tag::UNDEFINED => Ok(none()),
        tag::INT64 => {
            let n = Value::new_big_int(ctx.clone(), v.as_i64().unwrap_or(0))?;
            make(n, none())
        }
        tag::DECIMAL128 => {
            let decimal = v.as_decimal().unwrap_or(Decimal128::NAN);
            make(text(&decimal.to_string())?, none())
        }
        tag::OBJECT_ID => {
            let id = v.as_oid().unwrap_or(ObjectId([0; 12]));
            make(text(&id.to_string())?, none())
        }
        tag::DATE => {
            let ms = v.as_date().unwrap_or(0);
            make(Value::new_number(ctx.clone(), ms as f64), none())
        }
        tag::TIMESTAMP => {
            let t = v.as_timestamp().unwrap_or(0);
            let part = |n: u64| Value::new_number(ctx.clone(), (n & 0xFFFF_FFFF) as f64);
            make(part(t >> 32), part(t))
        }
        tag::BINARY => {
            let (subtype, bytes) = v.as_binary().unwrap_or((0, &[]));
            let subtype = Value::new_int(ctx.clone(), i32::from(subtype));
            make(subtype, text(&bson::json::base64(bytes))?)
        }
        tag::REGEX => {
            let (pattern, options) = v.as_regex().unwrap_or(("", ""));
            make(text(pattern)?, text(options)?)
        }
        tag::CODE => {
            let code = String::from_utf8_lossy(v.str_bytes().unwrap_or(&[]));
            make(text(&code)?, none())
        }
        tag::CODE_WITH_SCOPE => {
            let (code, scope) = v.as_code_with_scope().unwrap_or((&[], Doc::EMPTY));
            let code = text(&String::from_utf8_lossy(code))?;
            let scope = doc_to_js(ctx, scope)?.into_value();
            helper(ctx, "make")?.call((i32::from(tag::CODE), code, scope))
        }
        tag::MIN_KEY | tag::MAX_KEY => make(none(), none()),
        _ => Ok(Value::new_null(ctx.clone())),
    }
}

pub fn doc_to_js<'js>(ctx: &Ctx<'js>, d: Doc<'_>) -> rquickjs::Result<Object<'js>> {
    let out = Object::new(ctx.clone())?;
    for e in d {
        out.set(e.name, to_js(ctx, e.val)?)?;
    }
    Ok(out)
}

/// Does something with text as UTF-8: half a surrogate pair is the replacement character.
pub fn with_text<'js, T>(
    ctx: &Ctx<'js>,
    s: &rquickjs::String<'js>,
    f: impl FnOnce(&str) -> T,
) -> Result<T> {
    let inside = s.clone().to_cstring()?;
    // The engine's text, without a copy. It is no UTF-8 where there is half a pair.
    let bytes: &[u8] = inside.as_ref();
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Ok(f(text));
    }
    let whole: rquickjs::String<'js> = helper(ctx, "wellFormed")?.call((s.clone(),))?;
    Ok(f(&whole.to_string()?))
}

/// [`with_text`], copied.
pub fn text<'js>(ctx: &Ctx<'js>, s: &rquickjs::String<'js>) -> Result<String> {
    with_text(ctx, s, str::to_string)
}

/// Appends a script's value under `name` (of no account inside an array).
pub fn write<'js>(
    ctx: &Ctx<'js>,
    w: &mut Writer,
    name: &str,
    v: &Value<'js>,
    depth: usize,
) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(ScriptFault::Own(err!(
            17279,
            "Exceeded depth limit of {MAX_DEPTH} when converting js object to BSON. Do you have a cycle?"
        )));
    }
    if let Some(n) = v.as_number() {
        w.f64(name, n);
    } else if let Some(s) = v.as_string() {
        with_text(ctx, s, |s| {
            w.str(name, s);
        })?;
    } else if let Some(b) = v.as_bool() {
        w.bool(name, b);
    } else if v.is_null() {
        w.null(name);
    } else if let Some(a) = v.as_array() {
        w.open_array(name);
        // A script may have made it as long as it likes: what it takes ends the loop.
        let len: Value<'js> = a.as_object().get("length")?;
        for i in 0..len.as_number().unwrap_or(0.0) as usize {
            write(ctx, w, "", &a.get(i)?, depth + 1)?;
        }
        w.close();
    } else if let Some(o) = v.as_object() {
        write_object(ctx, w, name, o, depth)?;
    } else if v.is_big_int() {
        let long: Value<'js> = helper(ctx, "make")?.call((i32::from(tag::INT64), v.clone()))?;
        return write(ctx, w, name, &long, depth + 1);
    } else {
        w.val(name, Val::UNDEFINED);
    }
    check_size(w)
}

fn check_size(w: &Writer) -> Result<()> {
    if w.len() > MAX_BYTES {
        return Err(ScriptFault::Own(err!(
            17260,
            "Converting from JavaScript to BSON failed: Object size {} exceeds limit of {MAX_BYTES} bytes.",
            w.len()
        )));
    }
    Ok(())
}

fn write_object<'js>(
    ctx: &Ctx<'js>,
    w: &mut Writer,
    name: &str,
    o: &Object<'js>,
    depth: usize,
) -> Result<()> {
    let kind: Value<'js> = o.get("_bson")?;
    if let Some(kind) = kind.as_int() {
        return write_special(ctx, w, name, o, kind, depth);
    }
    w.open_doc(name);
    for property in
        o.own_props::<rquickjs::String<'js>, Value<'js>>(Filter::new().string().enum_only())
    {
        let (key, value) = property?;
        let key = text(ctx, &key)?;
        if key.contains('\0') {
            return Err(ScriptFault::Own(err!(
                BadValue,
                "JavaScript property (name) contains a null char which is not allowed in BSON. {}",
                key.escape_debug()
            )));
        }
        write(ctx, w, &key, &value, depth + 1)?;
    }
    w.close();
    Ok(())
}

/// A value of a class of the prelude, or what claims to be one.
fn write_special<'js>(
    ctx: &Ctx<'js>,
    w: &mut Writer,
    name: &str,
    o: &Object<'js>,
    kind: i32,
    depth: usize,
) -> Result<()> {
    let parts: Array<'js> = helper(ctx, "unmake")?.call((o.clone(),))?;
    let part = |i: usize| parts.get::<Value<'js>>(i);
    let number = |i: usize| Ok::<f64, ScriptFault>(part(i)?.as_number().unwrap_or(0.0));
    let string = |i: usize| match part(i)?.as_string() {
        Some(s) => text(ctx, s),
        None => Ok(String::new()),
    };
    let malformed =
        |what: &str| ScriptFault::Own(err!(BadValue, "malformed {what} in a script's value"));
    match u8::try_from(kind).unwrap_or(0) {
        tag::BINARY => {
            let bytes = bson::json::from_base64(&string(1)?).ok_or_else(|| malformed("BinData"))?;
            w.binary(name, number(0)? as u8, &bytes);
        }
        tag::OBJECT_ID => {
            let id = ObjectId::parse_hex(&string(0)?).ok_or_else(|| malformed("ObjectId"))?;
            w.oid(name, id);
        }
        tag::DATE => {
            w.date(name, number(0)? as i64);
        }
        tag::REGEX => {
            let bytes = regex_bytes(string(0)?, string(1)?);
            let bytes = bytes.ok_or_else(|| malformed("regular expression"))?;
            let (tag, bytes) = (tag::REGEX, bytes.as_slice());
            w.val(name, Val { tag, bytes });
        }
        tag::CODE => {
            let code = bson::Value::str_from_bytes(string(0)?.as_bytes());
            let code = code.as_val().bytes;
            match part(1)?.as_object() {
                None => {
                    let (tag, bytes) = (tag::CODE, code);
                    w.val(name, Val { tag, bytes });
                }
                Some(scope) => {
                    let bytes = code_with_scope(ctx, code, scope, depth)?;
                    let (tag, bytes) = (tag::CODE_WITH_SCOPE, bytes.as_slice());
                    w.val(name, Val { tag, bytes });
                }
            };
        }
        tag::INT32 => {
            w.i32(name, number(0)? as i32);
        }
        tag::TIMESTAMP => {
            let (t, i) = (number(0)? as u32, number(1)? as u32);
            w.timestamp(name, u64::from(t) << 32 | u64::from(i));
        }
        tag::INT64 => {
            w.i64(
                name,
                string(0)?.parse().map_err(|_| malformed("NumberLong"))?,
            );
        }
        tag::DECIMAL128 => {
            let decimal: Decimal128 = string(0)?.parse().map_err(|_| malformed("NumberDecimal"))?;
            w.val(name, bson::Value::from(decimal).as_val());
        }
        tag::MAX_KEY => {
            w.val(name, Val::MAX_KEY);
        }
        tag::MIN_KEY => {
            w.val(name, Val::MIN_KEY);
        }
        _ => return Err(malformed("BSON type")),
    }
    Ok(())
}

/// A regular expression's bytes: pattern and options, each ended by a zero. `None` where the pattern
/// holds one.
fn regex_bytes(pattern: String, mut options: String) -> Option<Vec<u8>> {
    if pattern.contains('\0') {
        return None;
    }
    options.retain(|c| "imsx".contains(c));
    Some(format!("{pattern}\0{options}\0").into_bytes())
}

/// The bytes of code with a scope: their length, the code's string, the scope's document.
fn code_with_scope<'js>(
    ctx: &Ctx<'js>,
    code: &[u8],
    scope: &Object<'js>,
    depth: usize,
) -> Result<Vec<u8>> {
    let mut inner = Writer::new();
    write(ctx, &mut inner, "scope", scope.as_value(), depth + 1)?;
    let inner = inner.finish();
    let scope = inner.as_doc().get("scope").and_then(Val::as_doc);
    let scope = scope.unwrap_or(Doc::EMPTY).as_bytes();
    let mut whole = ((4 + code.len() + scope.len()) as i32)
        .to_le_bytes()
        .to_vec();
    whole.extend_from_slice(code);
    whole.extend_from_slice(scope);
    Ok(whole)
}

/// A number's text as the text of a decimal, for the prelude.
pub fn decimal<'js>(ctx: Ctx<'js>, text: String) -> rquickjs::Result<Value<'js>> {
    match text.parse::<Decimal128>() {
        Ok(d) => d.to_string().into_js(&ctx),
        Err(_) => Err(rquickjs::Exception::throw_message(
            &ctx,
            &format!("invalid NumberDecimal: {text}"),
        )),
    }
}
