//! Slices of a release build that was compared with itself on a real machine (`tests/data/compare-with-itself.tsv`). Tests draw
//! runs from them, so that what a busy machine does to a run cannot make a test fail.

/// What one side did in a slice.
#[derive(Clone, Copy)]
pub struct RecordedSlice {
    pub per_second: f64,
    /// Microseconds of the server's CPU an operation.
    pub cpu_us: f64,
}

/// The pairs of slices of each trial.
pub fn trials() -> Vec<Vec<[RecordedSlice; 2]>> {
    let text = include_str!("../tests/data/compare-with-itself.tsv");
    let mut trials: Vec<Vec<_>> = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let numbers: Vec<f64> = line.split('\t').map(|n| n.parse().unwrap()).collect();
        let [trial, a_rate, a_cpu, b_rate, b_cpu] = numbers[..] else {
            panic!("a pair of slices has five columns: {line}");
        };
        trials.resize(trials.len().max(trial as usize), Vec::new());
        let slice = |per_second, cpu_us| RecordedSlice { per_second, cpu_us };
        trials[trial as usize - 1].push([slice(a_rate, a_cpu), slice(b_rate, b_cpu)]);
    }
    let pairs: usize = trials.iter().map(Vec::len).sum();
    assert!(trials.len() == 10 && pairs > 200, "{pairs} pairs");
    trials
}
