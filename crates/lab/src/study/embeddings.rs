//! Vectors for study M, made of a seed or read from a file, and the exact answers that recall is counted against.
//!
//! Made vectors lie in clusters on a sheet of few dimensions, as embeddings do: nearness among points that fill all dimensions
//! evenly means nothing. All have the length 1, so the nearest by cosine have the greatest products.

use crate::fault::{Fault, Result, local};
use crate::process::allowed_cores;
use crate::random::Rng;
use std::path::Path;

/// Dimensions of the sheet that made vectors lie on.
const SHEET: usize = 24;
/// Vectors of a made cluster, about; how far they lie around its centre, and off the sheet.
const A_CLUSTER: usize = 200;
const AROUND: f32 = 0.5;
const OFF: f32 = 0.02;
pub const MOST_DIMENSIONS: usize = 8192;
/// Sums of a product that are added up beside each other.
const LANES: usize = 8;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    pub dimensions: usize,
    values: Vec<f32>,
}

/// What an exact search of one vector gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exact {
    /// How many results there are.
    pub due: usize,
    /// The product of the last of them.
    pub least: f32,
}

impl Vectors {
    pub fn len(&self) -> usize {
        self.values.len() / self.dimensions.max(1)
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.dimensions..(i + 1) * self.dimensions]
    }

    /// So many of a seed.
    pub fn made(count: usize, dimensions: usize, seed: u64) -> Vectors {
        let mut rng = Rng::new(seed);
        let mut points = |n: usize| -> Vec<f32> { (0..n).map(|_| normal(&mut rng)).collect() };
        let clusters = (count / A_CLUSTER).max(1);
        let (centres, sheet) = (points(clusters * SHEET), points(dimensions * SHEET));
        let mut made = Vectors {
            dimensions,
            values: Vec::with_capacity(count * dimensions),
        };
        for _ in 0..count {
            let of = rng.below(clusters as u64) as usize * SHEET;
            let place: Vec<f32> = (0..SHEET)
                .map(|d| centres[of + d] + AROUND * normal(&mut rng))
                .collect();
            for axis in sheet.chunks_exact(SHEET) {
                made.values
                    .push(product(axis, &place) + OFF * normal(&mut rng));
            }
        }
        made.normalised().unwrap_or_default()
    }

    /// The first vectors of a file: `.fvecs`, in which each has its dimensions before it, or 32-bit floats and nothing else.
    pub fn read(path: &Path, dimensions: Option<usize>, most: usize) -> Result<Vectors> {
        let wrong = |why: &str| Fault::Usage(format!("{}: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(local(path.display()))?;
        let first = bytes.first_chunk::<4>().copied().unwrap_or_default();
        let (head, dimensions) = match path.extension().is_some_and(|e| e == "fvecs") {
            true => (4, u32::from_le_bytes(first) as usize),
            false => (0, dimensions.unwrap_or(0)),
        };
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(wrong(
                "--dimensions from 1 to 8192 is needed, or a file .fvecs",
            ));
        }
        let mut values = Vec::new();
        for row in bytes.chunks_exact(head + dimensions * 4).take(most) {
            if row[..head] != first[..head] {
                return Err(wrong("vectors of several lengths"));
            }
            let floats = row[head..].as_chunks::<4>().0.iter();
            values.extend(floats.map(|b| f32::from_le_bytes(*b)));
        }
        let no = || wrong("a vector has no direction, or a number that is not finite");
        Vectors { dimensions, values }.normalised().ok_or_else(no)
    }

    /// The same of length 1, if each has a direction.
    fn normalised(mut self) -> Option<Vectors> {
        for row in self.values.chunks_exact_mut(self.dimensions.max(1)) {
            let length = product(row, row).sqrt();
            if !length.is_normal() {
                return None;
            }
            row.iter_mut().for_each(|v| *v /= length);
        }
        Some(self)
    }

    /// Takes so many out, evenly.
    pub fn split(self, out: usize) -> (Vectors, Vectors) {
        let every = (self.len() / out.max(1)).max(1);
        let dimensions = self.dimensions;
        let (mut rest, mut taken) = (Vec::with_capacity(self.values.len()), Vec::new());
        for i in 0..self.len() {
            let is_taken = i % every == 0 && taken.len() < out * dimensions;
            let to = if is_taken { &mut taken } else { &mut rest };
            to.extend_from_slice(self.row(i));
        }
        let of = |values| Vectors { dimensions, values };
        (of(rest), of(taken))
    }

    /// Exact answers to queries among those that are wanted, the best `k` of each.
    pub fn exact(
        &self,
        queries: &Vectors,
        k: usize,
        wanted: impl Fn(usize) -> bool + Sync,
    ) -> Vec<Exact> {
        let among: Vec<usize> = (0..self.len()).filter(|i| wanted(*i)).collect();
        let mut all = vec![Exact { due: 0, least: 0.0 }; queries.len()];
        let share = queries.len().div_ceil(allowed_cores().len().max(1)).max(1);
        std::thread::scope(|threads| {
            for (n, part) in all.chunks_mut(share).enumerate() {
                let among = &among;
                threads.spawn(move || {
                    for (i, exact) in part.iter_mut().enumerate() {
                        *exact = self.best(queries.row(n * share + i), k, among);
                    }
                });
            }
        });
        all
    }

    fn best(&self, query: &[f32], k: usize, among: &[usize]) -> Exact {
        let mut best: Vec<f32> = Vec::with_capacity(k + 1);
        for &i in among {
            let near = product(query, self.row(i));
            if best.len() < k || best.last().is_some_and(|last| near > *last) {
                let at = best.partition_point(|b| *b > near);
                best.insert(at, near);
                best.truncate(k);
            }
        }
        Exact {
            due: best.len(),
            least: best.last().copied().unwrap_or_default(),
        }
    }
}

impl Exact {
    /// Whether a vector is as near as those that there must be; sums of floats may differ a little.
    pub fn has(&self, product: f32) -> bool {
        product >= self.least - 1e-5
    }
}

pub fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a
        .remainder()
        .iter()
        .zip(b.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (a, b) in a.zip(b) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    rest + sums.iter().sum::<f32>()
}

/// Normally distributed (Box and Muller).
fn normal(rng: &mut Rng) -> f32 {
    let length = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    (length * (std::f64::consts::TAU * rng.unit()).cos()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_a_seed_are_the_same_and_lie_in_clusters() {
        let all = Vectors::made(1000, 40, 3);
        assert_eq!(all, Vectors::made(1000, 40, 3));
        assert_ne!(all, Vectors::made(1000, 40, 4));
        assert_eq!((all.len(), all.row(999).len()), (1000, 40));
        let near = |i, j| product(all.row(i), all.row(j));
        assert!((0..1000).all(|i| (near(i, i) - 1.0).abs() < 1e-4));
        // Of five clusters each vector has its like, and most are none.
        let like = (1..1000).filter(|i| near(0, *i) > 0.5).count();
        assert!((100..500).contains(&like), "{like}");
    }

    #[test]
    fn exact_answers_are_those_of_all_products() {
        let (all, queries) = Vectors::made(620, 9, 1).split(20);
        assert_eq!((all.len(), queries.len()), (600, 20));
        let wanted = |i: usize| i.is_multiple_of(3);
        for (i, exact) in all.exact(&queries, 10, wanted).iter().enumerate() {
            let products = (0..600)
                .filter(|i| wanted(*i))
                .map(|n| product(queries.row(i), all.row(n)));
            let mut products: Vec<f32> = products.collect();
            products.sort_by(|a, b| b.total_cmp(a));
            assert_eq!((exact.due, exact.least), (10, products[9]));
            assert!(exact.has(products[9]) && exact.has(products[0]) && !exact.has(-1.0));
        }
        let few = all.exact(&queries, 10, |i| i < 4);
        assert!(few.iter().all(|e| e.due == 4));
        assert!(
            all.exact(&queries, 10, |_| false)
                .iter()
                .all(|e| e.due == 0)
        );
    }

    #[test]
    fn files_of_both_kinds_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (raw, fvecs) = (dir.path().join("a.f32"), dir.path().join("a.fvecs"));
        let rows = [[3f32, 4.0], [0.0, 2.0], [1.0, 0.0]];
        let floats = |row: &[f32; 2]| row.map(f32::to_le_bytes).concat();
        std::fs::write(&raw, rows.iter().flat_map(floats).collect::<Vec<u8>>()).unwrap();
        let heads = rows
            .iter()
            .flat_map(|r| [2u32.to_le_bytes().to_vec(), floats(r)].concat());
        std::fs::write(&fvecs, heads.collect::<Vec<u8>>()).unwrap();
        let read = Vectors::read(&raw, Some(2), 2).unwrap();
        assert_eq!(
            (read.len(), read.row(0), read.row(1)),
            (2, &[0.6, 0.8][..], &[0.0, 1.0][..])
        );
        assert_eq!(Vectors::read(&fvecs, None, 2).unwrap(), read);
        assert_eq!(Vectors::read(&fvecs, None, 9).unwrap().len(), 3);
        assert!(Vectors::read(&raw, None, 9).is_err());
        std::fs::write(&raw, [0; 8]).unwrap();
        assert!(Vectors::read(&raw, Some(2), 9).is_err());
    }
}
