//! `configureQueryAnalyzer`: how many queries of a collection are sampled.

use super::analyze_shard_key::collection;
use super::namespace;
use super::sampling::ANALYZERS;
use crate::request::{CommandContext, Done};
use crate::settings::documents;
use bson::{Doc, DocBuf, Val, Writer};
use errors::{Fallible, Result, bail};
use front::Args;
use front::idl;

const AT: &str = "configureQueryAnalyzer";
/// As in MongoDB.
const MOST_PER_SECOND: f64 = 50.0;

idl::arguments! {
    struct Arguments<'a> {
        "mode" => mode: Option<&'a str> = idl::string,
        "samplesPerSecond" => per_second: Option<f64> = idl::number,
    }
}

/// The parsed command.
pub struct Configuration {
    pub ns: String,
    /// `None`: nothing is sampled.
    per_second: Option<f64>,
}

impl Configuration {
    pub fn parse(body: Doc<'_>) -> Fallible<Configuration> {
        Configuration::read(body).map_err(|stop| stop.into_error())
    }

    fn read(body: Doc<'_>) -> Result<Configuration> {
        let args = Args::parse(AT, body, None)?;
        for (name, given) in [
            ("read", args.generic.read_concern),
            ("write", args.generic.write_concern),
        ] {
            if given.is_some() {
                bail!(InvalidOptions, "{AT} takes no {name} concern");
            }
        }
        let a = Arguments::parse(AT, args.fields.iter().copied())?;
        let ns = namespace(AT, args.first)?;
        let full = match idl::required(AT, "mode", a.mode)? {
            "full" => true,
            "off" => false,
            other => bail!(
                BadValue,
                "Enumeration value '{other}' for field '{AT}.mode' is not a valid value."
            ),
        };
        match a.per_second {
            Some(_) if !full => bail!(
                InvalidOptions,
                "Cannot specify 'samplesPerSecond' when 'mode' is \"off\""
            ),
            None if full => bail!(
                InvalidOptions,
                "'samplesPerSecond' must be specified when 'mode' is not \"off\""
            ),
            Some(n) if n.is_nan() || n <= 0.0 => {
                bail!(InvalidOptions, "'samplesPerSecond' must be greater than 0")
            }
            Some(n) if n > MOST_PER_SECOND => bail!(
                InvalidOptions,
                "'samplesPerSecond' must be less than or equal to {MOST_PER_SECOND}"
            ),
            per_second => Ok(Configuration { ns, per_second }),
        }
    }

    fn write(&self, w: &mut Writer) {
        match self.per_second {
            Some(n) => w.str("mode", "full").f64("samplesPerSecond", n),
            None => w.str("mode", "off"),
        };
    }

    /// The document of `config.queryAnalyzers` but for its `_id`. `before`: the one that it takes the
    /// place of.
    pub fn stored(&self, uuid: Val<'_>, before: Option<&DocBuf>) -> DocBuf {
        let now = crate::clock::now_millis();
        let mut w = Writer::new();
        w.val("collUuid", uuid);
        self.write(&mut w);
        match before.and_then(|d| d.get("startTime")) {
            Some(begun) if self.per_second.is_none() => w.val("startTime", begun),
            _ => w.date("startTime", now),
        };
        if self.per_second.is_none() {
            w.date("stopTime", now);
        }
        w.finish()
    }

    /// The reply, but for `ok`.
    pub fn reply(&self, before: Option<&DocBuf>) -> DocBuf {
        let mut w = Writer::new();
        if let Some(before) = before {
            w.open_doc("oldConfiguration");
            let shown = ["mode", "samplesPerSecond"];
            for e in before.as_doc().iter().filter(|e| shown.contains(&e.name)) {
                w.val(e.name, e.val);
            }
            w.close();
        }
        w.open_doc("newConfiguration");
        self.write(&mut w);
        w.close();
        w.finish()
    }
}

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let asked = Configuration::parse(cx.request.body)?;
    let coll = collection(cx, &asked.ns)?;
    let before = documents::get(&cx.app.engine, ANALYZERS, &asked.ns)?;
    let uuid = bson::Value::binary(4, &coll.uuid);
    let stored = asked.stored(uuid.as_val(), before.as_ref());
    documents::put(&mut cx.op, ANALYZERS, &asked.ns, stored.as_doc())?;
    cx.after_commit = true;
    let reply = asked.reply(before.as_ref());
    cx.w.extend(reply.as_doc());
    Ok(Done::Reply)
}
