//! The limit of new connections a second (the parameters `ingressConnectionEstablishment…` of MongoDB
//! 8), and its counts. The acceptor asks at each connection; the settings change while it runs.

use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The limit, and the figures of `serverStatus.connections`.
#[derive(Debug, Default)]
pub struct Establishment {
    limited: AtomicBool,
    rate: Mutex<EstablishmentRate>,
    /// Connections that wait to be let in.
    pub queued: AtomicU64,
    /// Connections closed because too many waited already.
    pub rejected: AtomicU64,
    /// Connections let in because of their address.
    pub exempted: AtomicU64,
}

impl Establishment {
    /// The rate now; `None` when connections are not limited.
    pub fn rate(&self) -> Option<EstablishmentRate> {
        self.limited.load(Relaxed).then(|| self.rate.lock().clone())
    }

    /// Limits connections from now on, or no longer.
    pub fn limit(&self, rate: Option<EstablishmentRate>) {
        let limited = rate.is_some();
        if let Some(rate) = rate {
            *self.rate.lock() = rate;
        }
        self.limited.store(limited, Relaxed);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct EstablishmentRate {
    /// Connections a second.
    pub per_second: f64,
    /// For how many seconds unused connections are saved up.
    pub burst_seconds: f64,
    /// How many may wait.
    pub queue_depth: usize,
    /// Whose connections are let in at once.
    pub exempt: Vec<AddressRange>,
}

impl EstablishmentRate {
    pub fn is_exempt(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|a| self.exempt.iter().any(|r| r.contains(a)))
    }
}

/// An address, or all that share its first bits: `10.1.2.3`, `10.0.0.0/8`, `fe80::/10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    bits: u32,
}

impl AddressRange {
    pub fn parse(text: &str) -> Option<AddressRange> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().ok()?;
        let all = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        (bits <= all).then_some(AddressRange { first, bits })
    }

    /// An IPv4 address that came in over IPv6 is taken as what it is.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (a, b, all) = match (self.first, address.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
            _ => return false,
        };
        let differ: u128 = a ^ b;
        differ.checked_shr(all - self.bits).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_shares_its_first_bits() {
        for (range, inside, outside) in [
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("10.0.0.0/8", "10.200.0.1", "11.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1", "::1"),
            ("fe80::/10", "fe90::1", "fec0::1"),
        ] {
            let range = AddressRange::parse(range).unwrap();
            assert!(range.contains(inside.parse().unwrap()), "{range:?}");
            assert!(!range.contains(outside.parse().unwrap()), "{range:?}");
        }
        let all = AddressRange::parse("::/0").unwrap();
        assert!(all.contains("1::2".parse().unwrap()));
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "a/1", "10.0.0.0/-1"] {
            assert_eq!(AddressRange::parse(wrong), None, "{wrong}");
        }
    }
}
