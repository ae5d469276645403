//! The owner of a certificate: the name as MongoDB writes it, and the roles that MongoDB's extension
//! gives.
//!
//! A name is written by RFC 2253, the last part first, with OpenSSL's short names; bytes that are not
//! ASCII become `\C3\A4`. The extension (1.3.6.1.4.1.34601.2.1.1) is a set of sequences of two UTF-8
//! strings: role, database.

use x509_cert::Certificate;
use x509_cert::der::asn1::{Any, BmpString, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, Tag, Tagged};

const ROLES: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.34601.2.1.1");

/// Types of attributes by their short names. Others are written as numbers.
const SHORT_NAMES: &[(&str, &str)] = &[
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.44", "generationQualifier"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.65", "pseudonym"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// A certificate, as far as a login asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    pub subject: String,
    /// The parts O, OU and DC, sorted: what members of one cluster have in common.
    pub organization: Vec<String>,
    /// Role and database, where the certificate says what its owner may do.
    pub roles: Option<Vec<(String, String)>>,
    /// Milliseconds since 1970.
    pub expires_millis: i64,
}

/// Reads a certificate in DER.
pub fn read(der: &[u8]) -> Result<Certified, String> {
    let certificate = Certificate::from_der(der).map_err(|e| e.to_string())?;
    let body = certificate.tbs_certificate();
    let mut parts = Vec::new();
    let mut organization = Vec::new();
    for rdn in body.subject().iter_rdn() {
        let mut written = Vec::new();
        for attribute in rdn.iter() {
            let oid = attribute.oid.to_string();
            let known = SHORT_NAMES.iter().find(|(o, _)| *o == oid);
            let name = known.map_or(oid.as_str(), |(_, short)| short);
            let part = format!("{name}={}", escaped(&text(&attribute.value)));
            if matches!(name, "O" | "OU" | "DC") {
                organization.push(part.clone());
            }
            written.push(part);
        }
        parts.push(written.join("+"));
    }
    parts.reverse();
    organization.sort_unstable();
    let end = body.validity().not_after.to_unix_duration();
    let extensions = body.extensions().map_or(&[][..], |e| e.as_slice());
    let given = extensions.iter().find(|e| e.extn_id == ROLES);
    let roles = given.map(|e| roles(e.extn_value.as_bytes())).transpose()?;
    Ok(Certified {
        subject: parts.join(","),
        organization,
        roles,
        expires_millis: i64::try_from(end.as_millis()).unwrap_or(i64::MAX),
    })
}

/// A sequence of two strings.
type Pair<'a> = Vec<Utf8StringRef<'a>>;

fn roles(der: &[u8]) -> Result<Vec<(String, String)>, String> {
    let malformed = |e| format!("the roles in the certificate are malformed: {e}");
    // Encoders do not sort what DER wants sorted, so the set is read as what it holds.
    let set = Any::from_der(der).map_err(malformed)?;
    let mut found = Vec::new();
    if set.tag() != Tag::Set {
        return Err("the roles in the certificate are no set".into());
    }
    let mut rest = set.value();
    while !rest.is_empty() {
        let (pair, after) = Pair::from_der_partial(rest).map_err(malformed)?;
        let [role, database] = pair.as_slice() else {
            return Err("a role in the certificate names no database".into());
        };
        found.push((role.to_string(), database.to_string()));
        rest = after;
    }
    Ok(found)
}

/// An attribute's value as UTF-8, whichever of ASN.1's string types it has.
fn text(value: &Any) -> Vec<u8> {
    match value.tag() {
        Tag::BmpString => {
            let text = BmpString::from_ucs2(value.value()).map(|s| s.to_string());
            text.unwrap_or_default().into_bytes()
        }
        // Latin-1, which OpenSSL takes it for.
        Tag::TeletexString => {
            let text: String = value.value().iter().copied().map(char::from).collect();
            text.into_bytes()
        }
        _ => value.value().to_vec(),
    }
}

fn escaped(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (i, &b) in value.iter().enumerate() {
        let at_an_end = (b == b' ' && (i == 0 || i == last)) || (b == b'#' && i == 0);
        match b {
            0x80.. => out.push_str(&format!("\\{b:02X}")),
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(char::from(b));
            }
            _ => {
                if at_an_end {
                    out.push('\\');
                }
                out.push(char::from(b));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        for (value, written) in [
            ("abc", "abc"),
            (" abc", "\\ abc"),
            ("#abc", "\\#abc"),
            ("abc ", "abc\\ "),
            ("a#c", "a#c"),
            ("a,c+\"\\<>;", "a\\,c\\+\\\"\\\\\\<\\>\\;"),
            ("Jürgen", "J\\C3\\BCrgen"),
            ("", ""),
        ] {
            assert_eq!(escaped(value.as_bytes()), written, "{value}");
        }
    }

    #[test]
    fn roles_in_a_certificate() {
        // SET { SEQUENCE { "b", "x" }, SEQUENCE { "a", "admin" } }
        let der = b"\x31\x14\x30\x06\x0c\x01b\x0c\x01x\x30\x0a\x0c\x01a\x0c\x05admin";
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(roles(der).unwrap(), [pair("b", "x"), pair("a", "admin")]);
        assert!(roles(&der[..10]).is_err());
        assert!(roles(b"\x30\x00").is_err());
        assert_eq!(roles(b"\x31\x00").unwrap(), []);
        assert!(read(b"nonsense").is_err());
    }
}
