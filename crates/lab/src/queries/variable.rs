//! Variables of a query file: what values they have, and how the next one is drawn.

use crate::distribution::Chooser;
use crate::random::Rng;
use std::sync::atomic::{AtomicI64, Ordering};

/// What a variable is, as the file says.
#[derive(Clone, Debug, PartialEq)]
pub enum VariableKind {
    /// The same number each time.
    Constant(i64),
    /// All numbers of a range alike.
    Uniform(i64, i64),
    /// Few numbers of a range often: YCSB's constant 0.99, scattered over the range.
    Zipfian(i64, i64),
    /// One after the other, over all connections.
    Sequence(i64),
    /// So many letters.
    Text(usize),
}

impl VariableKind {
    /// From a name and its arguments, or a number.
    pub fn parse(text: &str, known: impl Fn(&str) -> Option<i64>) -> Result<VariableKind, String> {
        let number = |word: &str| {
            let word = word.trim();
            let value = match word.strip_prefix(':') {
                Some(name) => known(name),
                None => word.parse().ok(),
            };
            value.ok_or_else(|| format!("'{word}' is neither a number nor a constant"))
        };
        let text = text.trim();
        let Some((name, rest)) = text.split_once('(') else {
            return number(text).map(VariableKind::Constant);
        };
        let inside = rest.strip_suffix(')').ok_or("a ) is missing")?;
        let of: Vec<i64> = inside.split(',').map(number).collect::<Result<_, _>>()?;
        let range = |a: i64, b: i64| match b.checked_sub(a) {
            Some(0..) => Ok((a, b)),
            _ => Err(format!("{a} to {b} is no range")),
        };
        match (name.trim(), of.as_slice()) {
            ("uniform", &[a, b]) => range(a, b).map(|(a, b)| VariableKind::Uniform(a, b)),
            ("zipfian", &[a, b]) if a == b => Ok(VariableKind::Constant(a)),
            ("zipfian", &[a, b]) => range(a, b).map(|(a, b)| VariableKind::Zipfian(a, b)),
            ("sequence", &[a]) => Ok(VariableKind::Sequence(a)),
            ("text", &[n @ 1..=1_000_000]) => Ok(VariableKind::Text(n as usize)),
            _ => Err(format!(
                "{text} is none of uniform(A, B), zipfian(A, B), sequence(A), text(N) and a number"
            )),
        }
    }

    /// A value of the right type and length, for which others are put in.
    pub fn sample(&self) -> bson::Value {
        match self {
            VariableKind::Text(n) => bson::Value::from("x".repeat(*n)),
            _ => bson::Value::from(0i64),
        }
    }
}

/// What all lanes share of a variable.
#[derive(Debug)]
pub struct Variable {
    pub name: String,
    pub kind: VariableKind,
    next: AtomicI64,
}

impl Variable {
    pub fn new(name: &str, kind: VariableKind) -> Variable {
        let start = match kind {
            VariableKind::Sequence(a) => a,
            _ => 0,
        };
        Variable {
            name: name.to_string(),
            kind,
            next: AtomicI64::new(start),
        }
    }
}

/// One lane's way to draw it, and the last value.
pub struct Drawn {
    chooser: Option<Chooser>,
    /// As BSON has it: eight bytes of a number, or length, letters and a zero.
    pub bytes: Vec<u8>,
}

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz ,.eta";

impl Drawn {
    pub fn new(variable: &Variable) -> Drawn {
        let of = |a: i64, b: i64| a.abs_diff(b).saturating_add(1);
        Drawn {
            chooser: match variable.kind {
                VariableKind::Uniform(a, b) => Some(Chooser::uniform(of(a, b))),
                VariableKind::Zipfian(a, b) => Some(Chooser::exact(of(a, b))),
                _ => None,
            },
            bytes: variable.kind.sample().as_val().bytes.to_vec(),
        }
    }

    /// The next value.
    #[inline]
    pub fn draw(&mut self, variable: &Variable, rng: &mut Rng) {
        let value = match variable.kind {
            VariableKind::Constant(n) => n,
            VariableKind::Uniform(a, _) | VariableKind::Zipfian(a, _) => {
                let drawn = self.chooser.as_mut().map_or(0, |c| c.next(rng, u64::MAX));
                a.saturating_add_unsigned(drawn)
            }
            VariableKind::Sequence(_) => variable.next.fetch_add(1, Ordering::Relaxed),
            VariableKind::Text(_) => return self.letters(rng),
        };
        self.bytes.copy_from_slice(&value.to_le_bytes());
    }

    fn letters(&mut self, rng: &mut Rng) {
        let end = self.bytes.len() - 1;
        for chunk in self.bytes[4..end].chunks_mut(12) {
            let mut random = rng.next_u64();
            for b in chunk {
                *b = LETTERS[random as usize % 32];
                random >>= 5;
            }
        }
    }

    /// As SQL says it. Letters hold nothing that would end a text.
    pub fn write_sql(&self, variable: &Variable, out: &mut Vec<u8>) {
        if let VariableKind::Text(_) = variable.kind {
            out.push(b'\'');
            out.extend_from_slice(&self.bytes[4..self.bytes.len() - 1]);
            out.push(b'\'');
            return;
        }
        let number = self
            .bytes
            .first_chunk::<8>()
            .map(|b| i64::from_le_bytes(*b));
        out.extend_from_slice(number.unwrap_or_default().to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_refused() {
        let known = |name: &str| (name == "n").then_some(7);
        let kind = |text: &str| VariableKind::parse(text, known);
        assert_eq!(kind("12").unwrap(), VariableKind::Constant(12));
        assert_eq!(kind("uniform(1, :n)").unwrap(), VariableKind::Uniform(1, 7));
        assert_eq!(
            kind(" zipfian( -5,5 ) ").unwrap(),
            VariableKind::Zipfian(-5, 5)
        );
        assert_eq!(kind("text(3)").unwrap(), VariableKind::Text(3));
        for bad in [
            "",
            "uniform(1)",
            "uniform(2, 1)",
            "uniform(-9223372036854775808, 9223372036854775807)",
            "text(0)",
            "normal(1, 2)",
            "uniform(1, :m)",
            "uniform(1, 2",
        ] {
            assert!(kind(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_are_in_their_ranges_and_sequences_never_repeat() {
        let mut rng = Rng::new(1);
        for kind in [VariableKind::Uniform(-3, 4), VariableKind::Zipfian(-3, 4)] {
            let v = Variable::new("v", kind);
            let mut d = Drawn::new(&v);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..2000 {
                d.draw(&v, &mut rng);
                seen.insert(i64::from_le_bytes(*d.bytes.first_chunk().unwrap()));
            }
            assert_eq!(seen, (-3..=4).collect());
        }
        let v = Variable::new("v", VariableKind::Sequence(5));
        let (mut a, mut b) = (Drawn::new(&v), Drawn::new(&v));
        let mut sql = Vec::new();
        for d in [&mut a, &mut b] {
            d.draw(&v, &mut rng);
            d.write_sql(&v, &mut sql);
        }
        assert_eq!(sql, b"56");
        let v = Variable::new("v", VariableKind::Text(40));
        let mut d = Drawn::new(&v);
        d.draw(&v, &mut rng);
        sql.clear();
        d.write_sql(&v, &mut sql);
        assert!(sql.len() == 42 && !sql[1..41].contains(&b'\'') && !sql[1..41].contains(&0));
        assert_ne!(&sql[1..41], "x".repeat(40).as_bytes());
    }
}
