//! Bent messages: framing, parsing, decompression.

#[path = "../../../tests/fuzz/mutate.rs"]
mod mutate;
#[path = "../../../tests/fuzz/targets/wire.rs"]
mod targets;

use wire::{Codec, Compressor};

fn plain() -> Vec<u8> {
    let mut out = Vec::new();
    let start = wire::begin_msg(&mut out, 7, 0, 0);
    wire::begin_body(&mut out);
    // {"ping": 1, "a": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}
    let mut body = vec![0, 0, 0, 0, 0x10];
    body.extend_from_slice(b"ping\0\x01\0\0\0\x02a\0\x21\0\0\0");
    body.extend_from_slice(&[b'x'; 32]);
    body.extend_from_slice(&[0, 0]);
    let len = body.len() as u32;
    body[..4].copy_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&body);
    let sequence = wire::begin_sequence(&mut out, "documents");
    out.extend_from_slice(&[5, 0, 0, 0, 0]);
    out.extend_from_slice(&body);
    wire::end_sequence(&mut out, sequence);
    wire::end_checksummed(&mut out, start);
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let mut all = vec![plain()];
    for with in [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
        let mut out = plain();
        Codec::default()
            .compress(&mut out, 0, with)
            .expect("it compresses");
        all.push(out);
    }
    let mut query = Vec::new();
    wire::query(&mut query, 1, "admin.$cmd", -1, &[5, 0, 0, 0, 0]);
    all.push(query);
    all
}

#[test]
fn messages() {
    mutate::fuzz("wire", &seeds(), targets::messages);
}
