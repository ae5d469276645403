//! `saslStart`, `saslContinue`, `authenticate`, and the first message of a login inside `hello`.

use crate::request::{CommandContext, Done};
use crate::security::login::{self, LoginReply, LoginStart};
use auth::scram::Hash;
use bson::{Doc, Elem, Val, Writer};
use errors::{Result, bail};
use front::idl;

/// There is one exchange at a time on a connection.
const CONVERSATION: i32 = 1;

idl::arguments! {
    struct StartArguments<'a> {
        "mechanism" => mechanism: Option<&'a str> = idl::string,
        "payload" => payload: Option<&'a [u8]> = bytes,
        "options" => options: Option<Doc<'a>> = idl::doc,
    }
    ignored: "autoAuthorize" | "db";
}

idl::arguments! {
    struct ContinueArguments<'a> {
        "conversationId" => conversation: Option<i64> = idl::int,
        "payload" => payload: Option<&'a [u8]> = bytes,
    }
}

/// Binary data, or text as old shells send it.
fn bytes<'a>(within: &str, e: Elem<'a>) -> Result<Option<&'a [u8]>> {
    match (e.val.as_binary(), e.val.as_str()) {
        (Some((_, bytes)), _) => Ok(Some(bytes)),
        (None, Some(text)) => Ok(Some(text.as_bytes())),
        (None, None) if e.val.is_nullish() => Ok(None),
        _ => Err(idl::mismatch(within, e.name, e.val, &["binData", "string"])),
    }
}

pub fn start(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let seen = cx.app.control.stirred();
    if login::is_refused(cx) {
        return login::end_refused(cx, seen);
    }
    let at = "saslStart";
    let a = StartArguments::parse(at, cx.args.fields.iter().copied())?;
    let mechanism = idl::required(at, "mechanism", a.mechanism)?;
    let payload = idl::required(at, "payload", a.payload)?;
    let options = a.options.unwrap_or(Doc::EMPTY);
    let s = LoginStart {
        mechanism,
        payload,
        db: cx.args.db,
        skips_empty: options.get("skipEmptyExchange").is_some_and(Val::truthy),
    };
    match login::start(cx, &s)? {
        Some(reply) => {
            append(&mut cx.w, &reply);
            Ok(Done::Reply)
        }
        None => login::end_refused(cx, seen),
    }
}

pub fn continues(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let seen = cx.app.control.stirred();
    if login::is_refused(cx) {
        return login::end_refused(cx, seen);
    }
    let at = "saslContinue";
    let a = ContinueArguments::parse(at, cx.args.fields.iter().copied())?;
    let conversation = idl::required(at, "conversationId", a.conversation)?;
    let payload = idl::required(at, "payload", a.payload)?;
    if conversation != i64::from(CONVERSATION) {
        bail!(ProtocolError, "sasl: Mismatched conversation id");
    }
    match login::go_on(cx, payload)? {
        Some(reply) => {
            append(&mut cx.w, &reply);
            Ok(Done::Reply)
        }
        None => login::end_refused(cx, seen),
    }
}

fn append(w: &mut Writer, reply: &LoginReply) {
    w.i32("conversationId", CONVERSATION)
        .bool("done", reply.done)
        .binary("payload", 0, reply.payload.as_bytes());
}

/// The first message of a login that came with `hello`: its answer, or nothing where it fails, in
/// which case the client begins anew.
pub fn speculate(cx: &mut CommandContext<'_, '_>, first: Doc<'_>) -> Result<()> {
    cx.op.need_worker()?;
    let text = |name: &str| first.get(name).and_then(|v| v.as_str());
    if first.first().is_some_and(|e| e.name == "authenticate") {
        let by_certificate = text("mechanism") == Some(login::X509)
            && cx.client.certificate.get().is_some()
            && login::by_certificate(cx, text("user"))?;
        if by_certificate {
            cx.w.open_doc("speculativeAuthenticate");
            append_certified(cx);
            cx.w.close();
        }
        return Ok(());
    }
    let payload = first.get("payload").and_then(|v| v.as_binary());
    let (Some("saslStart"), Some(mechanism), Some(db), Some((_, payload))) = (
        first.first().map(|e| e.name),
        text("mechanism"),
        text("db"),
        payload,
    ) else {
        return Ok(());
    };
    let options = first.get("options").and_then(|v| v.as_doc());
    let options = options.unwrap_or(Doc::EMPTY);
    let s = LoginStart {
        mechanism,
        payload,
        db,
        skips_empty: options.get("skipEmptyExchange").is_some_and(Val::truthy),
    };
    if !login::may_have(cx.app, &s)? {
        // The reply lists the user's mechanisms, and the client takes another.
        return Ok(());
    }
    if let Ok(Some(reply)) = login::start(cx, &s) {
        cx.w.open_doc("speculativeAuthenticate");
        append(&mut cx.w, &reply);
        cx.w.close();
    }
    Ok(())
}

/// MONGODB-X509: the certificate of the connection is the login.
pub fn authenticate(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let seen = cx.app.control.stirred();
    if login::is_refused(cx) {
        return login::end_refused(cx, seen);
    }
    match cx.args.field("mechanism").and_then(|v| v.as_str()) {
        Some(login::X509) => {}
        Some(m) if Hash::named(m).is_some() => return Err(login::failed().into()),
        Some(m) => bail!(
            MechanismUnavailable,
            "Received authentication for mechanism {m} which is unknown or not enabled"
        ),
        None => return Err(idl::missing("authenticate", "mechanism")),
    }
    check_encrypted(cx)?;
    let user = cx.args.field("user").and_then(|v| v.as_str());
    if !login::by_certificate(cx, user)? {
        return login::end_refused(cx, seen);
    }
    append_certified(cx);
    Ok(Done::Reply)
}

fn check_encrypted(cx: &CommandContext<'_, '_>) -> Result<()> {
    if cx.app.control.certificates.get().is_none() {
        bail!(
            AuthenticationFailed,
            "SSL support is required for the MONGODB-X509 mechanism."
        );
    }
    Ok(())
}

fn append_certified(cx: &mut CommandContext<'_, '_>) {
    let user = login::certified(cx);
    cx.w.str("dbname", "$external").str("user", &user);
}
