//! `getClusterParameter` and `setClusterParameter`: settings that MongoDB keeps for a whole
//! cluster. They are kept and told; the features that they tune are here with the rest of this
//! server's or not yet.

use crate::request::{CommandContext, Done};
use crate::settings::stored::{self, InMemory};
use bson::{Doc, DocBuf, Val, Writer, doc, tag};
use errors::{Result, bail};
use executor::Engine;
use front::idl;
use std::sync::Weak;
use std::sync::atomic::Ordering;

fn defaults(name: &str) -> Option<DocBuf> {
    Some(match name {
        "changeStreamOptions" => {
            doc! { "preAndPostImages": doc! { "expireAfterSeconds": "off" } }
        }
        "changeStreams" => doc! { "expireAfterSeconds": 3600i64 },
        "pauseMigrationsDuringMultiUpdates" => doc! { "enabled": false },
        "defaultMaxTimeMS" => doc! { "readOperations": 0i64 },
        "fleDisableSubstringPreviewParameterLimits" => doc! { "enabled": false },
        _ => return None,
    })
}

const NAMES: [&str; 5] = [
    "changeStreamOptions",
    "changeStreams",
    "defaultMaxTimeMS",
    "fleDisableSubstringPreviewParameterLimits",
    "pauseMigrationsDuringMultiUpdates",
];

/// After how long change streams show the images of documents no more, where the engine looks.
pub struct ImageExpiry(pub Weak<Engine>);

impl InMemory for ImageExpiry {
    fn id(&self) -> &'static str {
        "clusterParameter.changeStreamOptions"
    }

    fn take(&self, setting: Option<Doc<'_>>) {
        let images = setting.and_then(|d| d.get("preAndPostImages")?.as_doc());
        let seconds = images.and_then(|d| d.get("expireAfterSeconds")?.as_i64());
        let seconds = seconds.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        if let Some(engine) = self.0.upgrade() {
            engine
                .image_expiry_seconds
                .store(seconds, Ordering::Relaxed);
        }
    }
}

/// What the `_id` of a parameter's document begins with.
pub(crate) use front::cluster_settings::PARAMETER_PREFIX as PREFIX;

fn setting(name: &str) -> String {
    format!("{PREFIX}{name}")
}

pub fn get(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "getClusterParameter";
    let first = cx.args.first;
    let names: Vec<&str> = match (first.as_str(), first.as_array()) {
        (Some("*"), _) => NAMES.to_vec(),
        (Some(name), _) => vec![name],
        (None, Some(list)) => {
            let mut names = Vec::new();
            for (i, v) in list.values().enumerate() {
                match v.as_str() {
                    Some(s) => names.push(s),
                    None => return Err(idl::mismatch(AT, &format!("{AT}.{i}"), v, &["string"])),
                }
            }
            names
        }
        _ => return Err(idl::mismatch(AT, AT, first, &["string", "array"])),
    };
    if names.is_empty() {
        bail!(
            BadValue,
            "Must supply at least one cluster server parameter"
        );
    }
    let mut shown = Vec::new();
    for name in names {
        let Some(default) = defaults(name) else {
            bail!(NoSuchKey, "Unknown server parameter: {name}")
        };
        let stored = stored::load(&cx.app.engine, &setting(name))?;
        let mut w = Writer::new();
        w.str("_id", name);
        w.extend(stored.as_ref().unwrap_or(&default).as_doc());
        shown.push(w.finish());
    }
    cx.w.open_array("clusterParameters");
    for d in &shown {
        cx.w.push(d.as_doc().as_val());
    }
    cx.w.close();
    Ok(Done::Reply)
}

pub fn set(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    const AT: &str = "setClusterParameter";
    let first = bson::Elem {
        name: AT,
        val: cx.args.first,
    };
    let d = idl::required(AT, AT, idl::doc(AT, first)?)?;
    if d.iter().count() > 1 {
        bail!(
            InvalidOptions,
            "{AT} only supports setting exactly one parameter"
        );
    }
    let Some((e, default)) = d.first().and_then(|e| Some((e, defaults(e.name)?))) else {
        bail!(
            NoSuchKey,
            "Unknown server parameter: {}",
            d.first().map_or("", |e| e.name)
        )
    };
    let Some(new) = e.val.as_doc() else {
        bail!(BadValue, "Cluster parameter value must be an object");
    };
    if let Some(bad) = new.iter().find(|e| e.name.starts_with('$')) {
        bail!(
            DollarPrefixedFieldName,
            "The dollar ($) prefixed field '{}' is not allowed in a cluster parameter",
            bad.name
        );
    }
    let mut w = Writer::new();
    if e.name == "changeStreamOptions" {
        images(new, &mut w)?;
    } else {
        let stored = stored::load(&cx.app.engine, &setting(e.name))?;
        let now = stored.as_ref().unwrap_or(&default);
        for known in default.as_doc() {
            let given = new.get(known.name);
            let value = match given {
                // Null means the default; a field without a value keeps its own.
                Some(v) if v.is_nullish() => known.val,
                Some(v) => v,
                None => now.get(known.name).unwrap_or(known.val),
            };
            scalar(e.name, known.name, known.val, value, &mut w)?;
        }
        if let Some(bad) = new.iter().find(|n| default.get(n.name).is_none()) {
            return Err(idl::unknown(e.name, bad.name));
        }
    }
    w.timestamp("clusterParameterTime", cx.app.store.last_ts());
    stored::save(&mut cx.op, &setting(e.name), w.finish().as_doc())?;
    Ok(Done::Reply)
}

/// A value of the type that the default has.
fn scalar(within: &str, name: &str, default: Val<'_>, v: Val<'_>, w: &mut Writer) -> Result<()> {
    let e = bson::Elem { name, val: v };
    if default.tag == tag::BOOL {
        let b = idl::required(within, name, idl::boolean(within, e)?)?;
        w.bool(name, b);
        return Ok(());
    }
    let least = i64::from(within == "changeStreams");
    let n = idl::required(within, name, idl::int_from(within, e, least)?)?;
    w.i64(name, n);
    Ok(())
}

/// `{preAndPostImages: {expireAfterSeconds: <number> | "off"}}`.
fn images(d: Doc<'_>, w: &mut Writer) -> Result<()> {
    const WHAT: &str =
        "changeStreamOptions must be {preAndPostImages: {expireAfterSeconds: <seconds> | 'off'}}";
    let (Some(e), 1) = (d.first(), d.iter().count()) else {
        bail!(BadValue, "{WHAT}")
    };
    let inner = e.val.as_doc().filter(|_| e.name == "preAndPostImages");
    let Some(inner) = inner else {
        bail!(BadValue, "{WHAT}")
    };
    let value = inner.get("expireAfterSeconds");
    if inner.iter().any(|e| e.name != "expireAfterSeconds") {
        bail!(BadValue, "{WHAT}");
    }
    w.open_doc("preAndPostImages");
    match value {
        Some(v) if v.as_str() == Some("off") => w.str("expireAfterSeconds", "off"),
        Some(v) if v.is_number() && idl::whole(v).is_some_and(|n| n > 0) => {
            w.i64("expireAfterSeconds", idl::whole(v).unwrap_or(0))
        }
        _ => bail!(BadValue, "{WHAT}"),
    };
    w.close();
    Ok(())
}
