//! What the published studies saw, for shapes beside ours.

/// Study C: operations a second by millions of records, at the best number of threads (128, 128, 64).
pub fn c_by_size(scenario: &str) -> Option<[(f64, f64); 3]> {
    let rates = match scenario {
        "C.S5" => [230e3, 170e3, 70e3],
        "C.S2" => [200e3, 120e3, 40e3],
        "C.S3" => [160e3, 70e3, 25e3],
        "C.S4" => [140e3, 40e3, 20e3],
        _ => return None,
    };
    Some([(5e6, rates[0]), (30e6, rates[1]), (100e6, rates[2])])
}

/// Study D on one process: load, write-mostly, mixed, read-mostly, read-only.
pub const D_ONE: [f64; 5] = [7295.0, 12_102.0, 15_982.0, 19_102.0, 49_020.0];

/// What a study reported in words, by the name of our result.
pub fn findings(name: &str) -> &'static [&'static str] {
    match name {
        "A-single" => &[
            "Inserts: 25 MB/s until memory was full at 20 million records, then 2 MB/s; batches hardly faster, safe inserts steady.",
            "One indexed number: 8,000–9,000 queries/s (80 MB/s), steady to 200 million records; two numbers a little better, swinging more.",
            "Sorted by the date index: falling once the indexes outgrew memory. First hundred: about 800/s (80 MB/s).",
            "Past 200 million records the last two swung by 30% every 4 million records.",
        ],
        "A-sharded" => &[
            "Three shards on one server: safe inserts slower but very steady; hundreds a second while chunks moved.",
            "Test 4 half of one process; test 5 sometimes better; test 6 clearly worse; test 7 and disk about the same.",
            "209,766,143 documents, 214.8 GB, 823 chunks; each shard 69.5–70.4 million, 74.15 GB of storage, 11.3 GB of indexes.",
        ],
        "B-keys" => &[
            "In this order: MongoDB without id, MySQL without key, MySQL with key, MongoDB with id.",
            "The keyed modes spike regularly; the others are even with single dips. MongoDB with id declines markedly.",
            "Reads far ahead of MySQL while keys are few, uneven when they are many.",
        ],
        "C-sizes" => &[
            "Inserts peak at 128 threads (190,000/s) and fall beyond; steepest growth from 1 to 64 threads.",
            "Five million records, 128 threads: 230, 200, 160 and 140 thousand/s for 0, 10, 50 and 90% updates; at 100 million, 64 threads, 70, 40, 25 and 20.",
            "More writes, more variance and latency. The main finding is the fall with data size.",
        ],
        "D-shards" => &[
            "One process: 7,295 inserts/s at 4.5 ms, then 12,102, 15,982, 19,102 and 49,020 operations/s.",
            "With shards, mixed loads gain 275%, reads alone gain nothing; six shards saturate the machine.",
        ],
        "E-pains" => &[
            "More insert threads made inserts slower, with many threads waiting; restart slow and cold; repair after a crash very long.",
        ],
        _ => &[],
    }
}
