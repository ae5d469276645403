//! `dropConnections`: ends this server's connections to others, of which it has none; the addresses
//! are checked.

use crate::request::{CommandContext, Done};
use errors::{Result, bail};
use front::idl;

const AT: &str = "dropConnections";

pub fn run(cx: &mut CommandContext<'_, '_>) -> Result<Done> {
    let mut list = None;
    for e in cx.args.fields.clone() {
        match e.name {
            "hostAndPort" => list = idl::array(AT, e)?,
            _ => return Err(cx.args.unknown(e)),
        }
    }
    let list = idl::required(AT, "hostAndPort", list)?;
    for (i, v) in list.values().enumerate().filter(|(_, v)| !v.is_nullish()) {
        let Some(text) = v.as_str() else {
            return Err(idl::mismatch(
                AT,
                &format!("hostAndPort.{i}"),
                v,
                &["string"],
            ));
        };
        let (host, port) = match text.strip_prefix('[').and_then(|t| t.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let bare = !text.starts_with('[');
        let named = !(host.is_empty() || bare && host.contains(':'));
        let sound = named && port.is_none_or(|p| p.parse::<u16>().is_ok_and(|n| n > 0));
        if !sound {
            bail!(FailedToParse, "'{text}' is no host and port");
        }
    }
    Ok(Done::Reply)
}
