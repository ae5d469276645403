//! A small seeded fuzzer, shared by the crates' `fuzz` tests: valid input, bent.
//!
//! `FUZZ_SECONDS` is how long a test runs, instead of its usual second or so; `FUZZ_SEED` replays one. A
//! finding is a panic: it prints the seed of its input, and its input in hexadecimal, which is then
//! added to the seeds of that target.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};

/// Runs `target` on the corpus of that name, on `seeds`, and on ever new bent copies of both.
pub fn fuzz(name: &str, seeds: &[Vec<u8>], mut target: impl FnMut(&[u8])) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seeds = [seeds, &corpus(name)].concat();
    if let Some(seed) = variable("FUZZ_SEED") {
        return run(name, seed, &bend(seed, &seeds), &mut target);
    }
    for seed in &seeds {
        run(name, 0, seed, &mut target);
    }
    let bounded = variable("FUZZ_SECONDS");
    let until = Instant::now() + Duration::from_millis(bounded.map_or(1500, |s| s * 1000));
    // The usual run is the same each time; a long one goes where none went before.
    let first = match bounded {
        None => 1,
        Some(_) => rand::rng().random::<u64>() >> 1,
    };
    let mut inputs = 0u64;
    for seed in first.. {
        if Instant::now() > until {
            break;
        }
        run(name, seed, &bend(seed, &seeds), &mut target);
        inputs += 1;
    }
    println!("{name}: {inputs} inputs from seed {first} on");
}

/// What fuzzing by coverage has found to lead somewhere (`scripts/fuzz.sh`): inputs, each behind its length.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let packed = std::fs::read(root.join("tests/fuzz/corpus").join(name)).unwrap_or_default();
    let (mut rest, mut all) = (packed.as_slice(), Vec::new());
    while let Some((len, more)) = rest.split_first_chunk::<4>() {
        let (input, more) = more.split_at(u32::from_le_bytes(*len) as usize);
        all.push(input.to_vec());
        rest = more;
    }
    all
}

fn run(name: &str, seed: u64, input: &[u8], target: &mut impl FnMut(&[u8])) {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(input)));
    if let Err(panic) = caught {
        let hex: String = input.iter().map(|b| format!("{b:02x}")).collect();
        eprintln!("{name}: FUZZ_SEED={seed} input {hex}");
        std::panic::resume_unwind(panic);
    }
}

fn bend(seed: u64, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let Some(start) = seeds.get(rng.random_range(0..seeds.len().max(1))) else {
        return Vec::new();
    };
    let mut bytes = start.clone();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=bytes.len());
        match rng.random_range(0..8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.random()),
            2 if at < bytes.len() => {
                bytes.remove(at);
            }
            3 if at < bytes.len() => bytes[at] ^= 1 << rng.random_range(0..8),
            4 if at < bytes.len() => bytes[at] = rng.random(),
            // A length or a count that lies.
            5 if at + 4 <= bytes.len() => {
                let lies = [
                    0,
                    1,
                    4,
                    5,
                    0x7f,
                    0xff,
                    0xffff,
                    i32::MAX,
                    i32::MIN,
                    -1,
                    rng.random(),
                ];
                let lie = lies[rng.random_range(0..lies.len())];
                bytes[at..at + 4].copy_from_slice(&lie.to_le_bytes());
            }
            // A piece of another seed.
            6 => {
                if let Some(other) = seeds.get(rng.random_range(0..seeds.len())) {
                    let from = rng.random_range(0..=other.len());
                    let to = rng.random_range(from..=other.len());
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
            }
            // A piece again.
            _ => {
                let to = rng.random_range(at..=bytes.len());
                let piece = bytes[at..to].to_vec();
                if bytes.len() + piece.len() < 1 << 16 {
                    bytes.splice(at..at, piece);
                }
            }
        }
    }
    bytes
}
