//! What the ciphers cost on this machine: `cargo run --release -p encryption --example cost`.

use encryption::{DataKey, EntryCipher};
use std::time::Instant;

fn main() -> Result<(), String> {
    let key = DataKey::generate();
    let entries = key.of_segment(1);
    for bytes in [100, 400, 1000, 4000] {
        let mut room = [&EntryCipher::FRONT[..], &vec![7; bytes], &EntryCipher::BACK].concat();
        let (times, begun) = (200_000, Instant::now());
        for _ in 0..times {
            entries.seal(&[1; 36], &mut room);
        }
        let each = begun.elapsed() / times;
        println!("an entry of {bytes} bytes: {each:?}");
    }
    let file = key.of_file(&key.new_header()).ok_or("a header is read")?;
    for bytes in [4 << 10, 32 << 10, 1 << 20] {
        let mut block = vec![0; bytes];
        let (times, begun) = ((1 << 29) / bytes, Instant::now());
        for n in 0..times {
            file.apply((n * bytes) as u64, &mut block);
        }
        let rate = (times * bytes) as f64 / begun.elapsed().as_secs_f64() / 1e9;
        println!("blocks of {bytes} bytes: {rate:.2} GB/s");
    }
    Ok(())
}
