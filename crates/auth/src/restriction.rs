//! From where a user may log in, and at which address of the server: `authenticationRestrictions`.
//!
//! ```text
//! [{clientSource: ["10.0.0.0/8", "::1"], serverAddress: ["127.0.0.1"]}, …]     one of them must hold
//! ```

use bson::{Doc, Val};
use errors::{Fallible, bail};
use std::net::IpAddr;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    address: IpAddr,
    bits: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Restriction {
    client: Option<Vec<Range>>,
    server: Option<Vec<Range>>,
}

/// Where none is given, every place is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restrictions(Vec<Restriction>);

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        (bits <= most).then_some(Range { address, bits })
    }

    fn holds(&self, ip: IpAddr) -> bool {
        let differ = |a: u128, b: u128, width: u8| match width - self.bits {
            128 => false,
            n => (a ^ b) >> n != 0,
        };
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => !differ(u32::from(a).into(), u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => !differ(a.into(), b.into(), 128),
            _ => false,
        }
    }
}

impl Restrictions {
    /// `v` is the array of a command or of a stored user or role.
    pub fn parse(v: Val<'_>) -> Fallible<Restrictions> {
        let Some(list) = v.as_array() else {
            bail!(
                TypeMismatch,
                "'authenticationRestrictions' must be an array"
            );
        };
        let mut all = Vec::new();
        for each in list.values() {
            let Some(d) = each.as_doc() else {
                bail!(
                    UnsupportedFormat,
                    "restriction in 'authenticationRestrictions' array must be an object"
                );
            };
            all.push(Restriction::parse(d)?);
        }
        Ok(Restrictions(all))
    }

    /// Whether a connection from `client` to `server` is allowed. A socket without addresses
    /// (`None`) passes only where nothing is restricted.
    pub fn allow(&self, client: Option<IpAddr>, server: Option<IpAddr>) -> bool {
        let within = |list: &Option<Vec<Range>>, ip: Option<IpAddr>| match list {
            None => true,
            Some(ranges) => ip.is_some_and(|ip| ranges.iter().any(|r| r.holds(ip))),
        };
        self.0.is_empty()
            || (self.0.iter()).any(|r| within(&r.client, client) && within(&r.server, server))
    }
}

impl Restriction {
    fn parse(d: Doc<'_>) -> Fallible<Restriction> {
        let mut restriction = Restriction::default();
        for e in crate::unique("authenticationRestrictions", d)? {
            let place = match e.name {
                "clientSource" => &mut restriction.client,
                "serverAddress" => &mut restriction.server,
                other => bail!(
                    BadValue,
                    "BSON field '{other}' is an unknown authentication restriction"
                ),
            };
            let Some(list) = e.val.as_array() else {
                bail!(TypeMismatch, "'{}' must be an array of strings", e.name);
            };
            let mut ranges = Vec::new();
            for v in list.values() {
                match v.as_str().and_then(Range::parse) {
                    Some(range) => ranges.push(range),
                    None => bail!(BadValue, "'{}' holds an invalid CIDR: {v}", e.name),
                }
            }
            *place = Some(ranges);
        }
        Ok(restriction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    #[test]
    fn one_of_the_restrictions_must_hold() {
        let list = |d: bson::DocBuf| bson::Value::array(d);
        let d = doc! { "r": list(doc! {
            "0": doc! { "clientSource": list(doc! { "0": "10.1.0.0/16", "1": "::1" }) },
            "1": doc! { "serverAddress": list(doc! { "0": "127.0.0.1" }) },
        }) };
        let r = Restrictions::parse(d.get("r").unwrap()).unwrap();
        let ip = |s: &str| Some(s.parse().unwrap());
        assert!(r.allow(ip("10.1.2.3"), ip("8.8.8.8")) && r.allow(ip("::1"), None));
        assert!(r.allow(ip("8.8.8.8"), ip("127.0.0.1")) && r.allow(None, ip("127.0.0.1")));
        assert!(!r.allow(ip("10.2.0.1"), ip("8.8.8.8")) && !r.allow(None, None));
        assert!(
            r.allow(ip("::ffff:10.1.0.9"), None),
            "an address of either form"
        );
        assert!(Restrictions::default().allow(None, None));
    }

    #[test]
    fn ranges_are_checked() {
        for text in ["", "10.0.0.1/33", "x", "::1/129", "10.0.0/8", "1.2.3.4/"] {
            assert_eq!(Range::parse(text), None, "{text}");
        }
        assert!(
            Range::parse("0.0.0.0/0")
                .unwrap()
                .holds("9.9.9.9".parse().unwrap())
        );
        assert!(Range::parse("::/0").unwrap().holds("::5".parse().unwrap()));
    }
}
