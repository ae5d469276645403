//! Resume tokens of streams over the cluster.
//!
//! ```text
//! token of an event for clients = the shard's token without its end | name of the shard | 00 | 04
//! token of a mark               = as a shard has it
//! ```
//! Shards ignore the bytes behind their own token. As in their tokens the end may be missing, and what
//! stands behind it is passed over.

use cluster_view::Outcome;
use errors::err;

/// A shard's token of an event without its end, in hex: what stands behind is ours.
const EVENT_HEX: usize = 68;
/// The end of a token.
const END: u8 = 0x04;

/// A shard's token of an event, as a client gets it.
pub(crate) fn with_shard(token: &str, shard: &str) -> String {
    match token.get(..EVENT_HEX).filter(|_| !shard.is_empty()) {
        Some(event) => {
            let name: String = shard.bytes().map(|b| format!("{b:02X}")).collect();
            format!("{event}{name}00{END:02X}")
        }
        None => token.into(),
    }
}

/// The shard of an event, in a client's token of it; none in one that no router has given.
pub(crate) fn shard_in(token: &str) -> Outcome<String> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    let behind = token.as_bytes().get(EVENT_HEX..).unwrap_or_default();
    let bytes: Option<Vec<u8>> = behind
        .chunks(2)
        .map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?))
        .collect();
    let bytes = bytes.unwrap_or_default();
    if matches!(bytes.first(), None | Some(&END)) {
        return Ok(String::new());
    }
    let name = bytes.split(|b| *b == 0).next().unwrap_or_default();
    match String::from_utf8(name.to_vec()) {
        Ok(name) if name.len() < bytes.len() => Ok(name),
        _ => Err(err!(Overflow, "The resume token is too short").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;
    use changes::{ResumeToken, TokenPlace};
    use cluster_view::Failure;
    use errors::Code;

    #[test]
    fn a_token_names_its_shard() {
        let token = ResumeToken {
            ts: 7 << 32,
            place: TokenPlace::Event { at: 1, fragment: 0 },
            uuid: [3; 16],
        };
        let own = token.hex();
        let shard = |token: &str| shard_in(token).map_err(Failure::into_error);
        let whole = with_shard(&own, "shard-2");
        let data = doc! {"_data": &whole};
        assert_eq!(ResumeToken::parse(data.as_doc().as_val()).unwrap(), token);
        for same in [
            whole.clone(),
            whole.to_lowercase(),
            format!("{whole}FF"),
            whole[..whole.len() - 2].into(),
        ] {
            assert_eq!(shard(&same).unwrap(), "shard-2", "{same}");
        }
        for cut in (EVENT_HEX + 2..whole.len() - 2).step_by(2) {
            assert_eq!(shard(&whole[..cut]).unwrap_err().code, Code::Overflow);
        }
        // One that a replica set has given.
        for of_a_set in [own.clone(), format!("{own}FF"), own[..EVENT_HEX].into()] {
            assert_eq!(shard(&of_a_set).unwrap(), "");
        }
        assert_eq!(with_shard(&own, ""), own);
    }
}
