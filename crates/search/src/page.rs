//! Sequence tokens, by which a search goes on where another page of it has ended.
//!
//! ```text
//! token   hex(order's checksum u32 BE | order | tie)     order: !score f32 BE, or the sort's key
//! ```
//! Invariant: tokens of one search compare as its results follow one another, on every member and shard. A page begins
//! behind where the token's document was, whether that is still there or not. Scores change with the index, so pages by
//! score are exact only while nothing is written; pages by a sort are always.
//!
//! Source: MongoDB's manual, "Paginate the Results".

use crate::fields::SpecificationFields;
use crate::problem::wrong;
use bson::DocBuf;
use errors::Result;

/// The bytes that say which order a token is of.
const CHECKSUM: usize = 4;

/// Which page of the results is wanted, if not the first.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    checksum: [u8; CHECKSUM],
    bound: Option<(Side, Vec<u8>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    After,
    /// In reverse order.
    Before,
}

/// Where a document stands in its search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SequenceToken(Vec<u8>);

impl SequenceToken {
    /// As clients have it.
    pub fn written(&self) -> String {
        let digit = |n: u8| char::from_digit(u32::from(n), 16).unwrap_or('0');
        let digits = self.0.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]);
        digits.collect()
    }
}

fn read(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0 && d.len() > 2 * CHECKSUM)?;
    let byte = |pair: &[u32]| {
        let value = pair.iter().fold(0, |n, digit| n * 16 + digit);
        u8::try_from(value).ok()
    };
    digits.chunks(2).map(byte).collect()
}

/// The order of scores, best first, in bytes.
pub fn score_order(score: f32) -> [u8; 4] {
    let bits = score.to_bits();
    let ascending = match bits >> 31 {
        0 => bits | 1 << 31,
        _ => !bits,
    };
    (!ascending).to_be_bytes()
}

impl Pages {
    pub(crate) fn parse(f: &SpecificationFields<'_>, sort: Option<&DocBuf>) -> Result<Pages> {
        let order = sort.map_or(&[][..], |s| s.as_doc().as_bytes());
        let checksum = crc32c::crc32c(order).to_be_bytes();
        let token = |name: &'static str, side| -> Result<Option<(Side, Vec<u8>)>> {
            let Some(text) = f.string(name)? else {
                return Ok(None);
            };
            let bytes = read(text).filter(|b| b.starts_with(&checksum));
            match bytes {
                Some(bytes) => Ok(Some((side, bytes))),
                None => Err(wrong(format!(
                    "\"{name}\" is not a valid token of this search's order"
                ))),
            }
        };
        let (after, before) = (
            token("searchAfter", Side::After)?,
            token("searchBefore", Side::Before)?,
        );
        if after.is_some() && before.is_some() {
            return Err(wrong(
                "only one of \"searchAfter\" and \"searchBefore\" may be present",
            ));
        }
        Ok(Pages {
            checksum,
            bound: after.or(before),
        })
    }

    /// Whether it is another page than the first.
    pub fn is_bounded(&self) -> bool {
        self.bound.is_some()
    }

    /// Whether results come in reverse order.
    pub fn is_backwards(&self) -> bool {
        matches!(self.bound, Some((Side::Before, _)))
    }

    /// The token of a document. `tie` tells it from those that stand at the same place of the order.
    pub fn token(&self, order: &[u8], tie: &[u8]) -> SequenceToken {
        SequenceToken([&self.checksum, order, tie].concat())
    }

    /// Whether a document is on the page that is wanted, or one behind it.
    pub fn admits(&self, token: &SequenceToken) -> bool {
        match &self.bound {
            None => true,
            Some((Side::After, bound)) => token.0 > *bound,
            Some((Side::Before, bound)) => token.0 < *bound,
        }
    }

    /// Whether documents at a place of the order may be; those with other ties than the bound's may be even where it
    /// does not know.
    pub(crate) fn may_admit(&self, order: &[u8]) -> bool {
        let start = self.token(order, &[]).0;
        match &self.bound {
            None => true,
            Some((_, bound)) if bound.starts_with(&start) => true,
            Some((Side::After, bound)) => start > *bound,
            Some((Side::Before, bound)) => start < *bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn pages(spec: &DocBuf) -> Result<Pages> {
        Pages::parse(&SpecificationFields::new("", spec.as_doc()), None)
    }

    #[test]
    fn tokens_are_in_the_order_of_results() {
        let all = pages(&doc! {}).unwrap();
        let token = |score: f32, tie: &[u8]| all.token(&score_order(score), tie);
        let order = [
            token(2.5, b"b"),
            token(1.5, b"a"),
            token(1.5, b"ab"),
            token(0.0, b"a"),
        ];
        assert!(order.is_sorted());
        assert!(
            order.iter().map(SequenceToken::written).is_sorted(),
            "and so are their texts"
        );
        let second = order[1].written();
        let after = pages(&doc! {"searchAfter": second.as_str()}).unwrap();
        assert_eq!(
            order.clone().map(|t| after.admits(&t)),
            [false, false, true, true]
        );
        let before = pages(&doc! {"searchBefore": second.as_str()}).unwrap();
        assert_eq!(
            order.map(|t| before.admits(&t)),
            [true, false, false, false]
        );
        assert!(after.may_admit(&score_order(1.5)) && before.may_admit(&score_order(1.5)));
        assert!(!after.may_admit(&score_order(2.5)) && before.may_admit(&score_order(2.5)));
        assert!(after.may_admit(&score_order(0.0)) && !before.may_admit(&score_order(0.0)));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let odd = "00000000ff0";
        for bad in ["", "not_a_token", "00", odd, "ffffffff3f800000"] {
            assert!(pages(&doc! {"searchAfter": bad}).is_err(), "{bad}");
        }
        let one = "00000000ff";
        let both = doc! {"searchAfter": one, "searchBefore": one};
        assert!(pages(&both).is_err());
        assert!(pages(&doc! {"searchAfter": bson::Value::NULL}).is_ok());
    }
}
