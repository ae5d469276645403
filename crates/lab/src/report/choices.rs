//! What a target's query planner chose: of each query what the chosen plan read and what the best one reads.

use serde::{Deserialize, Serialize};

/// What fetching a document counts, in entries of an index.
pub const FETCH: u64 = 4;
/// How many of the worst are told of.
const WORST: usize = 10;

/// The shares of queries that tables and sentences name.
pub const SHARES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.995];

/// All queries of one target, in the order in which they were asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Choices {
    /// The target's label.
    pub target: String,
    /// Collections whose queries are all in.
    pub schemas: u64,
    /// What each query read by the plan that was chosen: entries, and four times the documents.
    pub chosen: Vec<u64>,
    /// The same by the best of all plans.
    pub best: Vec<u64>,
    pub worst: Vec<QueryChoice>,
}

/// One query, and what it read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueryChoice {
    pub chosen: u64,
    pub chosen_by: String,
    pub best: u64,
    pub best_by: String,
    pub query: String,
    pub documents: u64,
    pub indexes: Vec<String>,
    /// Which of the random collections and which of its queries, from 1.
    pub schema: u64,
    pub number: u64,
}

/// The quotient, a document added to both, so that few reads say little.
pub fn times(chosen: u64, best: u64) -> f64 {
    (chosen + FETCH + 1) as f64 / (best + FETCH + 1) as f64
}

impl QueryChoice {
    pub fn times(&self) -> f64 {
        times(self.chosen, self.best)
    }
}

impl Choices {
    /// Takes all queries of one more collection.
    pub fn add(&mut self, queries: Vec<QueryChoice>) {
        self.schemas += 1;
        self.chosen.extend(queries.iter().map(|c| c.chosen));
        self.best.extend(queries.iter().map(|c| c.best));
        self.worst.extend(queries);
        self.worst.sort_by(|a, b| b.times().total_cmp(&a.times()));
        self.worst.truncate(WORST);
        self.worst.retain(|c| c.chosen > c.best);
    }

    pub fn queries(&self) -> usize {
        self.chosen.len()
    }

    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chosen.iter().copied().zip(self.best.iter().copied())
    }

    /// Chosen over best of all queries, in order.
    pub fn times(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.pairs().map(|(c, b)| times(c, b)).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// What this share of the queries does not pass; not a number where there are none.
    pub fn at(&self, share: f64) -> f64 {
        let all = self.times();
        let place = (all.len().saturating_sub(1) as f64 * share) as usize;
        all.get(place).copied().unwrap_or(f64::NAN)
    }

    /// How many queries read more than so many times the best.
    pub fn above(&self, bar: f64) -> usize {
        self.pairs().filter(|(c, b)| times(*c, *b) > bar).count()
    }

    /// How many queries read more than ten times the best and 200 beside.
    pub fn beyond(&self) -> usize {
        self.pairs().filter(|(c, b)| *c > b * 10 + 200).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(chosen: u64, best: u64) -> QueryChoice {
        QueryChoice {
            chosen,
            best,
            ..QueryChoice::default()
        }
    }

    #[test]
    fn a_document_is_added_to_both() {
        assert_eq!(times(0, 0), 1.0);
        assert_eq!(times(5, 0), 2.0);
        assert_eq!(times(995, 95), 10.0);
    }

    #[test]
    fn percentiles_and_shares_of_the_queries() {
        let mut all = Choices::default();
        assert!(all.at(0.5).is_nan());
        // Of a thousand 990 are the best, nine read twice as much, one reads a hundred times.
        let first = (0..990).map(|_| choice(95, 95));
        all.add(first.collect());
        let more = (0..9).map(|_| choice(195, 95)).chain([choice(9995, 95)]);
        all.add(more.collect());
        assert_eq!((all.queries(), all.schemas), (1000, 2));
        assert_eq!(SHARES.map(|s| all.at(s)), [1.0, 1.0, 1.0, 1.0, 2.0]);
        assert_eq!(all.at(1.0), 100.0);
        assert_eq!(
            [all.above(1.5), all.above(2.0), all.above(10.0)],
            [10, 1, 1]
        );
        assert_eq!(all.beyond(), 1);
        // Only what read more than it had to is among the worst.
        assert_eq!(all.worst.len(), 10);
        assert_eq!(all.worst[0].chosen, 9995);
        let mut few = Choices::default();
        few.add(vec![choice(5, 5), choice(0, 0)]);
        assert!(few.worst.is_empty());
    }

    #[test]
    fn two_hundred_reads_are_forgiven() {
        let mut all = Choices::default();
        all.add(vec![choice(210, 1), choice(211, 1)]);
        assert_eq!((all.above(10.0), all.beyond()), (2, 1));
    }
}
