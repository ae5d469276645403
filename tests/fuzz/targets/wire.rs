//! Messages from a socket: framing, parsing, decompression.

use wire::{Codec, Frame, Message};

fn walk(message: &[u8]) {
    match wire::parse(message) {
        Ok((_, Message::Msg(msg))) => {
            for sequence in &msg.sequences {
                sequence.iter().for_each(|d| assert!(d.len() >= 5));
            }
            let _ = (msg.more_to_come(), msg.exhaust_allowed());
        }
        Ok((_, Message::Query(query))) => {
            let _ = (query.command_db(), query.command().is_ok());
        }
        _ => {}
    }
}

pub fn messages(input: &[u8]) {
    // However much of it has arrived, the frame is the same or not yet known.
    let frame = wire::frame(input);
    for part in [15, 16, 17, 21].map(|n| input.get(..n).unwrap_or(input)) {
        if let (Ok(Frame::Complete { len }), Ok(Frame::Complete { len: whole })) =
            (wire::frame(part), &frame)
        {
            assert_eq!(len, *whole);
        }
        let _ = (wire::parse(part).is_ok(), wire::Msg::peek_flags(part));
    }
    let Ok(Frame::Complete { len }) = frame else {
        return;
    };
    assert!(len <= input.len());
    let message = &input[..len];
    walk(message);
    if let Ok((header, Message::Compressed(compressed))) = wire::parse(message) {
        let (mut codec, mut out) = (Codec::default(), Vec::new());
        if codec.decompress(&header, &compressed, &mut out).is_ok() {
            walk(&out);
        }
    }
}
