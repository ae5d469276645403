//! What an operator has set of the balancer: the document `balancer` of `config.settings`.
//!
//! ```text
//! {_id: "balancer", stopped?, mode?: "full" | "off", activeWindow?: {start: "hh:mm", stop: "hh:mm"},
//!  _secondaryThrottle?: <boolean or write concern>, _waitForDelete?, attemptToBalanceJumboChunks?}
//! ```

use bson::{Doc, DocBuf, Val, array, doc};
use errors::{Result, bail, err};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancerSettings {
    pub is_off: bool,
    /// Minutes of the day: from the first to the second, over midnight where that is less.
    window: Option<(u16, u16)>,
    /// What the copy of a range waits for.
    pub throttle: Option<DocBuf>,
    /// Chunks that could not be cut are moved too.
    pub moves_jumbo: bool,
}

/// Minutes of a time of day, `hh:mm`.
fn minutes(time: &str) -> Option<u16> {
    let (hours, minutes) = time.split_once(':')?;
    let (hours, minutes): (u16, u16) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

fn window(d: Doc<'_>) -> Result<(u16, u16)> {
    let time = |name: &str| d.get(name).and_then(Val::as_str).unwrap_or_default();
    let (start, stop) = (time("start"), time("stop"));
    if start.is_empty() || stop.is_empty() {
        bail!(
            BadValue,
            "must specify both start and stop of balancing window: {d}"
        );
    }
    let (Some(start), Some(stop)) = (minutes(start), minutes(stop)) else {
        bail!(
            BadValue,
            "activeWindow format is  {{ start: \"hh:mm\" , stop: \"hh:mm\" }}"
        );
    };
    if start == stop {
        bail!(BadValue, "start and stop times must be different");
    }
    Ok((start, stop))
}

impl BalancerSettings {
    pub fn parse(d: Doc<'_>) -> Result<BalancerSettings> {
        let wrong = |name: &str, v: Val<'_>| {
            err!(
                TypeMismatch,
                "\"{name}\" had the wrong type {}",
                v.type_name()
            )
        };
        let flag = |name: &str| -> Result<bool> {
            match d.get(name) {
                None => Ok(false),
                Some(v) => Ok(v.as_bool().ok_or_else(|| wrong(name, v))?),
            }
        };
        let is_full = match d.get("mode") {
            None => true,
            Some(v) => v.as_str().ok_or_else(|| wrong("mode", v))? == "full",
        };
        flag("_waitForDelete")?;
        let throttle = match d.get("_secondaryThrottle") {
            None => None,
            Some(v) if v.as_bool().is_some() => None,
            Some(v) => {
                let concern = v.as_doc().ok_or_else(|| wrong("_secondaryThrottle", v))?;
                Some(concern.to_buf())
            }
        };
        Ok(BalancerSettings {
            is_off: flag("stopped")? || !is_full,
            window: match d.get("activeWindow") {
                None => None,
                Some(v) => {
                    let d = v.as_doc().ok_or_else(|| wrong("activeWindow", v))?;
                    Some(window(d)?)
                }
            },
            throttle,
            moves_jumbo: flag("attemptToBalanceJumboChunks")?,
        })
    }

    /// Whether ranges may move at this minute of the day.
    pub fn is_open(&self, minute: u16) -> bool {
        match self.window {
            None => true,
            Some((start, stop)) if start < stop => (start..=stop).contains(&minute),
            Some((start, stop)) => minute >= start || minute <= stop,
        }
    }
}

/// The validator of `config.settings`, by which a write that sets something else is refused (121).
pub fn validator() -> DocBuf {
    let boolean = || doc! {"bsonType": "bool"};
    let balancer = doc! {
        "properties": doc! {
            "_id": doc! {"enum": array!["balancer"]},
            "mode": doc! {"enum": array!["full", "off"]},
            "stopped": boolean(),
            "activeWindow": doc! {"bsonType": "object", "required": array!["start", "stop"]},
            "_secondaryThrottle": doc! {"oneOf": array![boolean(), doc! {"bsonType": "object"}]},
            "_waitForDelete": boolean(),
            "attemptToBalanceJumboChunks": boolean(),
        },
        "additionalProperties": false,
    };
    let other = doc! {"properties": doc! {"_id": doc! {"not": doc! {"enum": array!["balancer"]}}}};
    doc! {"$jsonSchema": doc! {"oneOf": array![balancer, other]}}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set() {
        let parse = |d: DocBuf| BalancerSettings::parse(d.as_doc());
        assert_eq!(parse(doc! {}).unwrap(), BalancerSettings::default());
        assert!(parse(doc! {"stopped": true}).unwrap().is_off);
        assert!(parse(doc! {"mode": "off"}).unwrap().is_off);
        let set = parse(doc! {
            "mode": "full", "_secondaryThrottle": doc! {"w": 2}, "_waitForDelete": true,
            "attemptToBalanceJumboChunks": true,
        });
        let set = set.unwrap();
        assert!(set.moves_jumbo && !set.is_off);
        assert_eq!(set.throttle, Some(doc! {"w": 2}));
        let code = |d: DocBuf| parse(d).unwrap_err().into_error().code.0;
        for (name, v) in [
            ("stopped", doc! {"stopped": 1}),
            ("_waitForDelete", doc! {"_waitForDelete": "x"}),
            ("_secondaryThrottle", doc! {"_secondaryThrottle": 5}),
            ("activeWindow", doc! {"activeWindow": "always"}),
        ] {
            assert_eq!(code(v), 14, "{name}");
        }
        for (start, stop) in [
            ("1:00", "1:00"),
            ("25:00", "1:00"),
            ("", "1:00"),
            ("x", "1:00"),
        ] {
            assert_eq!(
                code(doc! {"activeWindow": doc! {"start": start, "stop": stop}}),
                2
            );
        }
    }

    #[test]
    fn windows_may_go_over_midnight() {
        let open = |start: &str, stop: &str, at: &str| {
            let d = doc! {"activeWindow": doc! {"start": start, "stop": stop}};
            let set = BalancerSettings::parse(d.as_doc()).unwrap();
            set.is_open(minutes(at).unwrap())
        };
        assert!(open("01:00", "06:00", "01:00") && open("1:00", "6:00", "06:00"));
        assert!(!open("01:00", "06:00", "00:59") && !open("01:00", "06:00", "06:01"));
        assert!(open("23:00", "06:00", "23:30") && open("23:00", "06:00", "00:00"));
        assert!(!open("23:00", "06:00", "12:00"));
        assert!(BalancerSettings::default().is_open(0));
    }
}
