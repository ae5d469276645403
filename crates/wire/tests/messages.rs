//! Round trips, the faults by name, and hostile input, of the public interface.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use wire::*;

const EMPTY: [u8; 5] = [5, 0, 0, 0, 0];

/// `{<name>: <i32>}`
fn doc(name: &str, value: i32) -> Vec<u8> {
    let mut d = vec![0; 4];
    d.push(0x10);
    d.extend_from_slice(name.as_bytes());
    d.push(0);
    d.extend_from_slice(&value.to_le_bytes());
    d.push(0);
    let len = d.len() as u32;
    d[..4].copy_from_slice(&len.to_le_bytes());
    d
}

fn message(flags: u32, sections: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let start = begin_msg(&mut out, 11, 0, flags);
    out.extend_from_slice(sections);
    end(&mut out, start);
    out
}

fn body_section(document: &[u8]) -> Vec<u8> {
    [&[0][..], document].concat()
}

fn sequence_section(name: &str, documents: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let at = begin_sequence(&mut out, name);
    out.extend_from_slice(documents);
    end_sequence(&mut out, at);
    out
}

fn fault(bytes: &[u8]) -> (i32, bool) {
    match parse(bytes) {
        Err(f) => (f.error.code.0, f.fatal),
        Ok((_, m)) => panic!("parsed: {m:?}"),
    }
}

#[test]
fn op_msg_round_trip_with_sequences_and_checksum() {
    for checksummed in [false, true] {
        let mut out = vec![0xEE; 3]; // a message need not stand at the start of its buffer
        let start = begin_msg(&mut out, 7, 3, MORE_TO_COME | EXHAUST_ALLOWED);
        let at = begin_sequence(&mut out, "documents");
        out.extend(doc("a", 1));
        out.extend(doc("a", 2));
        end_sequence(&mut out, at);
        begin_body(&mut out);
        out.extend(doc("insert", 5));
        if checksummed {
            end_checksummed(&mut out, start)
        } else {
            end(&mut out, start)
        }
        let bytes = &out[3..];
        assert_eq!(frame(bytes).unwrap(), Frame::Complete { len: bytes.len() });
        let (header, parsed) = parse(bytes).unwrap();
        assert_eq!((header.request_id, header.response_to), (7, 3));
        let Message::Msg(msg) = parsed else { panic!() };
        assert!(msg.more_to_come() && msg.exhaust_allowed());
        assert_eq!(msg.flags & CHECKSUM_PRESENT != 0, checksummed);
        assert_eq!(msg.body, doc("insert", 5));
        assert_eq!(msg.sequences.len(), 1);
        assert_eq!(msg.sequences[0].name, "documents");
        let docs: Vec<_> = msg.sequences[0].iter().collect();
        assert_eq!(docs, [doc("a", 1), doc("a", 2)]);
    }
}

#[test]
fn checksum_guards_every_byte() {
    let mut out = Vec::new();
    let start = begin_msg(&mut out, 1, 0, 0);
    begin_body(&mut out);
    out.extend(doc("ping", 1));
    end_checksummed(&mut out, start);
    assert!(parse(&out).is_ok());
    // The length and the opcode decide earlier; clearing the checksum flag turns the sum into a section.
    for at in (4..12).chain(16..out.len()) {
        let mut bad = out.clone();
        bad[at] ^= 0x20;
        assert!(parse(&bad).is_err(), "byte {at}");
    }
}

#[test]
fn framing() {
    let whole = message(0, &body_section(&EMPTY));
    for cut in 0..whole.len() {
        let need = if cut < 4 { HEADER_BYTES } else { whole.len() };
        assert_eq!(frame(&whole[..cut]).unwrap(), Frame::Incomplete { need });
    }
    let two = [&whole[..], &whole[..]].concat();
    assert_eq!(frame(&two).unwrap(), Frame::Complete { len: whole.len() });
    for length in [0, 1, 15, -1, i32::MIN, i32::MAX, MAX_FRAME_BYTES as i32 + 1] {
        let f = frame(&length.to_le_bytes()).unwrap_err();
        assert!(
            f.fatal && f.error.code == errors::Code::ProtocolError,
            "{length}"
        );
    }
    let longest = (MAX_FRAME_BYTES as i32).to_le_bytes();
    assert_eq!(
        frame(&longest).unwrap(),
        Frame::Incomplete {
            need: MAX_FRAME_BYTES
        }
    );
}

#[test]
fn faults_of_op_msg() {
    let body = body_section(&EMPTY);
    let answer = |sections: &[&[u8]]| fault(&message(0, &sections.concat()));
    assert_eq!(answer(&[&body, &body]), (40430, false));
    assert_eq!(answer(&[]), (40587, false));
    let (a, b, c) = (
        sequence_section("a", &EMPTY),
        sequence_section("b", &[]),
        sequence_section("c", &[]),
    );
    assert_eq!(answer(&[&body, &a, &a]), (40431, false));
    assert_eq!(
        answer(&[&a, &b, &c, &body]),
        (errors::Code::TooManyDocumentSequences.0, true)
    );
    assert_eq!(answer(&[&[2], &body]), (40432, false));
    let illegal = fault(&message(1 << 2, &body));
    assert_eq!(illegal, (errors::Code::IllegalOpMsgFlag.0, true));
    assert!(
        parse(&message(1 << 17, &body)).is_ok(),
        "the upper flags are optional"
    );
    let invalid = errors::Code::InvalidBSON.0;
    for bad in [
        &[4u8, 0, 0, 0][..],
        &[6, 0, 0, 0, 0],
        &[255, 255, 255, 255, 0],
        &[5, 0, 0, 0, 1],
        &[5, 0],
    ] {
        assert_eq!(answer(&[&[0], bad]), (invalid, false), "{bad:?}");
        assert_eq!(
            answer(&[&body, &sequence_section("x", bad)]),
            (invalid, false),
            "{bad:?}"
        );
    }
    for bad in [
        &[1u8, 3, 0, 0, 0][..],
        &[1, 255, 255, 255, 127, 0],
        &[1, 5, 0, 0, 0, b'x'],
    ] {
        assert_eq!(answer(&[&body, bad]), (invalid, false), "{bad:?}");
    }
    // Flags that say a checksum follows, in a message with no room for one.
    let mut short = message(0, &[]);
    set_flags(&mut short, 0, CHECKSUM_PRESENT);
    assert!(parse(&short).is_err());
}

#[test]
fn legacy_round_trip() {
    let mut out = Vec::new();
    query(&mut out, 4, "admin.$cmd", -1, &doc("isMaster", 1));
    let (header, Message::Query(q)) = parse(&out).unwrap() else {
        panic!()
    };
    assert_eq!(
        (header.request_id, q.limit, q.command_db()),
        (4, -1, Some("admin"))
    );
    assert_eq!(q.command().unwrap(), doc("isMaster", 1));

    // {$query: {ping: 1}, $readPreference: …}
    let ping = doc("ping", 1);
    let mut wrapped = vec![0; 4];
    wrapped.extend(b"\x03$query\0");
    wrapped.extend(&ping);
    wrapped.push(0);
    let len = wrapped.len() as u32;
    wrapped[..4].copy_from_slice(&len.to_le_bytes());
    out.clear();
    query(&mut out, 4, "test.people", 0, &wrapped);
    let (_, Message::Query(q)) = parse(&out).unwrap() else {
        panic!()
    };
    assert_eq!((q.command_db(), q.command().unwrap()), (None, &ping[..]));

    out.clear();
    let start = begin_reply(&mut out, 9, 4, reply_flags::AWAIT_CAPABLE);
    out.extend(doc("ok", 1));
    end(&mut out, start);
    let (header, Message::Reply(reply)) = parse(&out).unwrap() else {
        panic!()
    };
    assert_eq!(
        (header.response_to, reply.flags, reply.cursor_id),
        (4, 8, 0)
    );
    assert_eq!(reply.iter().collect::<Vec<_>>(), [doc("ok", 1)]);
}

#[test]
fn removed_and_unknown_operations() {
    for (code, fatal) in [
        (op::INSERT, true),
        (op::UPDATE, true),
        (op::DELETE, true),
        (op::KILL_CURSORS, true),
        (op::GET_MORE, false),
    ] {
        let mut m = message(0, &[]);
        m[12..16].copy_from_slice(&code.to_le_bytes());
        assert!(matches!(parse(&m), Ok((_, Message::Removed(c))) if c == code));
        assert_eq!(removed(code).fatal, fatal);
    }
    let mut m = message(0, &[]);
    m[12..16].copy_from_slice(&77i32.to_le_bytes());
    assert!(matches!(parse(&m), Ok((_, Message::Unknown(77)))));
}

fn decompress(
    codec: &mut Codec,
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<Compressor, MessageError> {
    let (header, Message::Compressed(c)) = parse(bytes)? else {
        panic!("not compressed")
    };
    codec.decompress(&header, &c, out)?;
    Ok(c.compressor)
}

#[test]
fn compression_round_trip_and_limits() {
    let mut codec = Codec::default();
    let documents: Vec<u8> = (0..500).flat_map(|i| doc("some field", i % 7)).collect();
    let plain = message(
        0,
        &[
            body_section(&EMPTY),
            sequence_section("documents", &documents),
        ]
        .concat(),
    );
    let mut back = Vec::new();
    for compressor in Compressor::NEGOTIABLE {
        assert_eq!(Compressor::from_name(compressor.name()), Some(compressor));
        let mut packed = plain.clone();
        codec.compress(&mut packed, 0, compressor).unwrap();
        assert!(packed.len() < plain.len());
        assert_eq!(
            decompress(&mut codec, &packed, &mut back).unwrap(),
            compressor
        );
        assert_eq!(back, plain, "{compressor:?}");

        // A stated size that is not the true one, either way, and content that is cut.
        let stated = plain.len() as i32 - 16;
        for wrong in [
            0,
            1,
            stated - 1,
            stated + 1,
            -1,
            i32::MAX,
            MAX_MESSAGE_BYTES as i32 - 15,
        ] {
            let mut bad = packed.clone();
            bad[20..24].copy_from_slice(&wrong.to_le_bytes());
            let f = decompress(&mut codec, &bad, &mut back).unwrap_err();
            assert!(f.fatal, "{compressor:?} {wrong}");
        }
        let mut cut = packed[..packed.len() - 5].to_vec();
        end(&mut cut, 0);
        assert!(decompress(&mut codec, &cut, &mut back).unwrap_err().fatal);
        // And the codec is as good as new after each failure.
        decompress(&mut codec, &packed, &mut back).unwrap();
        assert_eq!(back, plain);
    }
    let mut tiny = message(0, &body_section(&EMPTY));
    let before = tiny.clone();
    codec.compress(&mut tiny, 0, Compressor::Zstd).unwrap();
    assert_eq!(tiny, before, "a short message is not worth compressing");

    // Noop, an unknown compressor, and a message in a message in a message.
    let mut noop = Vec::from(&before[..12]);
    noop.extend(op::COMPRESSED.to_le_bytes());
    noop.extend(op::MSG.to_le_bytes());
    noop.extend((before.len() as u32 - 16).to_le_bytes());
    noop.push(0);
    noop.extend(&before[16..]);
    end(&mut noop, 0);
    assert_eq!(
        decompress(&mut codec, &noop, &mut back).unwrap(),
        Compressor::Noop
    );
    assert_eq!(back, before);
    noop[24] = 9;
    assert!(parse(&noop).unwrap_err().fatal);
    noop[24] = 0;
    noop[16..20].copy_from_slice(&op::COMPRESSED.to_le_bytes());
    assert!(parse(&noop).unwrap_err().fatal);
    assert!(!may_compress("ISMASTER") && may_compress("find"));
}

/// Whatever the bytes, an answer and no panic; and random damage to sound messages likewise.
#[test]
fn hostile_bytes_never_panic() {
    let seed = rand::rng().random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut codec = Codec::default();
    let mut back = Vec::new();
    let documents: Vec<u8> = (0..40).flat_map(|i| doc("k", i)).collect();
    let sound = message(
        0,
        &[
            body_section(&doc("insert", 1)),
            sequence_section("documents", &documents),
        ]
        .concat(),
    );
    let mut corpus = vec![sound.clone()];
    for compressor in Compressor::NEGOTIABLE {
        let mut m = sound.clone();
        codec.compress(&mut m, 0, compressor).unwrap();
        corpus.push(m);
    }
    let mut legacy = Vec::new();
    query(&mut legacy, 1, "a.$cmd", -1, &doc("ping", 1));
    corpus.push(legacy);
    for _ in 0..20_000 {
        let mut m = corpus[rng.random_range(0..corpus.len())].clone();
        for _ in 0..rng.random_range(1..6) {
            let at = rng.random_range(0..m.len());
            m[at] = if rng.random() {
                rng.random()
            } else {
                [0, 255, 1, 127][rng.random_range(0..4)]
            };
        }
        if rng.random_ratio(1, 3) {
            m.truncate(rng.random_range(0..m.len()));
        }
        if m.len() >= 16 && rng.random_ratio(3, 4) {
            end(&mut m, 0);
        }
        if let Ok(Frame::Complete { len }) = frame(&m) {
            match parse(&m[..len]) {
                Ok((header, Message::Compressed(c))) if c.uncompressed_bytes < 1 << 20 => {
                    let _ = codec
                        .decompress(&header, &c, &mut back)
                        .map(|()| parse(&back).is_ok());
                }
                Ok((_, Message::Msg(msg))) => msg.sequences.iter().for_each(|s| {
                    assert!(s.iter().map(<[u8]>::len).sum::<usize>() == s.documents.len())
                }),
                Ok((_, Message::Query(q))) => drop(q.command()),
                _ => {}
            }
        }
    }
}
