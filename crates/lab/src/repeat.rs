//! Repeats: all of a run several times, its targets taking turns, so that what else the machine does in a while hits all of
//! them. Figures are medians over the repeats, with intervals from them ([`crate::rates`]).

use crate::fault::{Fault, Result};

#[derive(clap::Args, Clone, Debug, Default)]
pub struct Repeat {
    /// Measure everything so many times, targets taking turns; figures are medians (default: 3 where targets are compared,
    /// else 1).
    #[arg(long, alias = "rounds", value_name = "N")]
    pub repeat: Option<usize>,
}

/// The least from which an interval can be told that is of use.
const COMPARED: usize = 3;

impl Repeat {
    /// How many times, of so many targets.
    pub fn times(&self, targets: usize) -> Result<usize> {
        match self.repeat {
            Some(0) => Err(Fault::Usage("--repeat must be at least 1".into())),
            Some(n) => Ok(n),
            None if targets > 1 => Ok(COMPARED),
            None => Ok(1),
        }
    }
}

/// Which target has its turn in which repeat: `(repeat, target)`, forth and back, so that none is always the first.
pub fn turns(repeats: usize, targets: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..repeats).flat_map(move |repeat| {
        (0..targets).map(move |i| match repeat % 2 {
            0 => (repeat, i),
            _ => (repeat, targets - 1 - i),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_take_turns() {
        let all: Vec<_> = turns(3, 2).collect();
        assert_eq!(all, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
        let times = |repeat, targets| Repeat { repeat }.times(targets);
        assert_eq!(times(None, 1).unwrap(), 1);
        assert_eq!(times(None, 2).unwrap(), 3);
        assert_eq!(times(Some(1), 2).unwrap(), 1);
        assert!(times(Some(0), 1).is_err());
    }
}
