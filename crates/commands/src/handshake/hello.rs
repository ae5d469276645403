//! `hello`, and its old name `isMaster`: what a client must know of this server to talk to it.

use super::sasl;
use crate::clock::now_millis;
use crate::connection::monitor::Monitor;
use crate::request::{CommandContext, Done};
use crate::topology::member;
use crate::topology::monitor::{self, TopologyVersion};
use crate::version::{MAX_WIRE_VERSION, MIN_WIRE_VERSION};
use auth::UserName;
use auth::scram::Hash;
use bson::{Doc, Val, Writer, tag};
use errors::{Result, bail, err};
use front::idl;
use service::config::ClusterRole;
use sharding::protocol;

/// What a client's metadata may weigh, in bytes.
const MAX_METADATA_BYTES: usize = 512;
const MAX_APP_NAME_BYTES: usize = 128;
/// What the codec knows, in the order in which MongoDB prefers them.
const COMPRESSORS: [&str; 3] = ["snappy", "zstd", "zlib"];

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    answer(cx, "isWritablePrimary")
}

pub fn run_legacy(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    answer(cx, "ismaster")
}

fn answer(cx: &mut CommandContext<'_, '_>, primary: &str) -> Result<Done> {
    // Read before anything else is: what changes from now on is news.
    let seen = cx.app.control.stirred();
    let counter = cx.app.topology.counter();
    if !cx.request.again {
        *cx.client.state.monitor.lock() = Monitor::default();
    }
    let (mut hello_ok, mut wanted, mut mechanisms) = (false, None, None);
    let mut speculative = None;
    let (mut known, mut max_await, mut router) = (None, None, None);
    for e in cx.args.fields.clone() {
        match e.name {
            "helloOk" => hello_ok = e.val.truthy(),
            "client" => remember(cx, e.val)?,
            "compression" => wanted = e.val.as_array(),
            "saslSupportedMechs" => mechanisms = Some(user_name(e.val)?),
            "speculativeAuthenticate" => speculative = e.val.as_doc(),
            "topologyVersion" => known = TopologyVersion::parse(e)?,
            protocol::FIELD => router = Some(e.val.as_doc()),
            "maxAwaitTimeMS" => max_await = idl::int_from("hello", e, 0)?,
            // Whatever else a client of another version says is none of our business.
            _ => {}
        }
    }
    if let Some(theirs) = router
        && let Some(why) = protocol::disagreement("the router", theirs)
    {
        bail!(IncompatibleServerVersion, "{why}");
    }
    if let Some((known, max_await)) = awaited(known, max_await, cx.request.exhaust_allowed)?
        && let Some(until) = monitor::wait(cx, known, max_await, counter)?
    {
        return Ok(Done::Await { until, seen });
    }
    if hello_ok {
        cx.w.bool("helloOk", true);
    }
    monitor::append(cx, counter);
    let is_primary = member::is_writable(cx);
    cx.w.bool(primary, is_primary);
    member::append_hello(cx);
    append_limits(cx);
    if router.is_some() {
        cx.w.doc(protocol::FIELD, protocol::spoken().as_doc());
    }
    if let Some(wanted) = wanted {
        append_compressors(&mut cx.w, wanted);
    }
    if let Some(name) = mechanisms {
        append_mechanisms(cx, &name)?;
    }
    if let Some(first) = speculative {
        sasl::speculate(cx, first)?;
    }
    monitor::end_wait(cx);
    if !cx.request.exhaust_allowed {
        return Ok(Done::Reply);
    }
    monitor::note_streamed(cx, counter);
    Ok(Done::ReplyMore)
}

/// What the client knows and how long it waits for news; none if it wants an answer at once.
fn awaited(
    known: Option<TopologyVersion>,
    max_await: Option<i64>,
    exhaust: bool,
) -> Result<Option<(TopologyVersion, i64)>> {
    match (known, max_await) {
        (None, Some(_)) => bail!(
            31368,
            "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"
        ),
        (Some(_), None) => bail!(
            31368,
            "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'"
        ),
        (None, None) if exhaust => bail!(
            51756,
            "An isMaster or hello request with exhaust must specify 'maxAwaitTimeMS'"
        ),
        (None, None) => Ok(None),
        (Some(known), Some(max_await)) => {
            known.check()?;
            Ok(Some((known, max_await)))
        }
    }
}

/// What a server of this release takes, and what it is beside its set.
fn append_limits(cx: &mut CommandContext<'_, '_>) {
    let w = &mut cx.w;
    w.i32("maxBsonObjectSize", bson::MAX_DOC_BYTES as i32);
    w.i32("maxMessageSizeBytes", 48_000_000)
        .i32("maxWriteBatchSize", 100_000);
    w.date("localTime", now_millis());
    w.i32("logicalSessionTimeoutMinutes", 30);
    w.int("connectionId", cx.client.id);
    w.i32("minWireVersion", MIN_WIRE_VERSION)
        .i32("maxWireVersion", MAX_WIRE_VERSION);
    w.bool("readOnly", false);
    if cx.app.config.role == ClusterRole::Config {
        w.i32("configsvr", 2);
    }
}

/// Those of the wanted compressors that there are.
fn append_compressors(w: &mut Writer, wanted: Doc<'_>) {
    w.open_array("compression");
    let known = |v: &Val<'_>| v.as_str().is_some_and(|c| COMPRESSORS.contains(&c));
    for v in wanted.values().filter(known) {
        w.push_value(v.as_str().unwrap_or_default());
    }
    w.close();
}

/// The mechanisms that a user can log in by; all of them for an unknown user.
fn append_mechanisms(cx: &mut CommandContext<'_, '_>, name: &UserName) -> Result<()> {
    cx.op.need_worker()?;
    let user = cx.app.security.user(&cx.app.engine, name)?;
    let has = |hash: &Hash| match &user {
        Some(user) => user.credentials().get(hash.mechanism()).is_some(),
        None => true,
    };
    cx.w.open_array("saslSupportedMechs");
    for hash in [Hash::Sha1, Hash::Sha256].iter().filter(|h| has(h)) {
        cx.w.push_value(hash.mechanism());
    }
    cx.w.close();
    Ok(())
}

/// The user that `saslSupportedMechs` names: `db.user`, or an object of both.
fn user_name(v: Val<'_>) -> Result<UserName> {
    match v.tag {
        tag::STRING => match v.as_str().and_then(|s| s.split_once('.')) {
            Some((db, user)) => Ok(UserName::new(user, db)),
            None => bail!(
                BadValue,
                "UserName must contain a '.' separated database.user pair"
            ),
        },
        tag::DOCUMENT => {
            let d = v.as_doc().unwrap_or(Doc::EMPTY);
            let text = |f: &str| match d.get(f).and_then(|v| v.as_str()) {
                Some(text) => Ok(text.to_string()),
                None => Err(err!(BadValue, "User name must contain a field named: {f}")),
            };
            Ok(UserName::new(text("user")?, text("db")?))
        }
        _ => bail!(
            TypeMismatch,
            "UserName must be either a string or an object"
        ),
    }
}

/// Keeps the client's metadata, which comes once in the life of a connection.
fn remember(cx: &mut CommandContext<'_, '_>, v: Val<'_>) -> Result<()> {
    let Some(d) = v.as_doc() else {
        bail!(
            TypeMismatch,
            "The client metadata document must be a document"
        );
    };
    if d.len() > MAX_METADATA_BYTES {
        bail!(
            ClientMetadataDocumentTooLarge,
            "The client metadata document must be less then or equal to {MAX_METADATA_BYTES} bytes"
        );
    }
    let sub = |name: &str| d.get(name).and_then(|v| v.as_doc());
    let (Some(driver), Some(os)) = (sub("driver"), sub("os")) else {
        bail!(
            ClientMetadataMissingField,
            "Missing required sub-document 'driver' or 'os' in the client metadata document"
        );
    };
    for (doc, fields) in [(driver, &["name", "version"][..]), (os, &["type"][..])] {
        for f in fields {
            if doc.get(f).and_then(|v| v.as_str()).is_none() {
                bail!(
                    ClientMetadataMissingField,
                    "Missing required field '{f}' in the client metadata document"
                );
            }
        }
    }
    let app = sub("application")
        .and_then(|a| a.get("name"))
        .and_then(|v| v.as_str())
        .unwrap_or("");
    if app.len() > MAX_APP_NAME_BYTES {
        bail!(
            ClientMetadataAppNameTooLarge,
            "The 'client.application.name' field must be less then or equal to {MAX_APP_NAME_BYTES} bytes in the client metadata document"
        );
    }
    let state = &cx.client.state;
    match state.metadata.set(d.to_buf()) {
        Ok(()) => {
            let _ = state.app_name.set(app.to_string());
        }
        // Inline and then on a worker, one and the same hello may come by here twice.
        Err(again) if state.metadata.get() == Some(&again) => {}
        Err(_) => bail!(
            ClientMetadataCannotBeMutated,
            "The client metadata document may only be sent in the first hello"
        ),
    }
    Ok(())
}
