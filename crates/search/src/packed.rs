//! The words of a document as one text, which the library takes apart again.
//!
//! ```text
//! word     bytes | places on from the word before | PATH in hex U+0001 TOKEN      numbers in digits of base 32
//! ```
//! A document goes from one thread of the library to another as bytes. Words that are handed over as tokens would become
//! JSON on the way, which costs more than to index them.
//!
//! Invariant: places do not go back.

use crate::terms::{Words, word_prefix};
use tantivy::tokenizer::{Token, TokenStream, Tokenizer};

/// The name of the library's tokenizer that takes them apart.
pub(crate) const PACKED: &str = "packed";

/// The last digit of a number begins here; the others come before.
const LAST: u8 = 0x60;
const MORE: u8 = 0x40;

/// The words of a document.
pub(crate) fn packed(mut words: Words) -> String {
    let bytes = words.bytes();
    let words = words.by_position();
    let mut out = String::with_capacity(bytes + words.len() * 8);
    let (mut path, mut prefix, mut place) = (None, String::new(), 0);
    for (word, text) in words {
        if path != Some(word.path) {
            path = Some(word.path);
            prefix = word_prefix(word.path);
        }
        push_number(&mut out, prefix.len() + text.len());
        push_number(&mut out, word.position - place);
        place = word.position;
        out.push_str(&prefix);
        out.push_str(text);
    }
    out
}

/// The lowest digit first.
fn push_number(out: &mut String, mut number: usize) {
    while number >= 32 {
        out.push(char::from(MORE + (number % 32) as u8));
        number /= 32;
    }
    out.push(char::from(LAST + number as u8));
}

/// Takes the number off the text's beginning.
fn number(text: &mut &str) -> Option<usize> {
    let (mut number, mut shift) = (0usize, 0);
    loop {
        let digit = *text.as_bytes().first()?;
        *text = text.get(1..)?;
        let value = usize::from(digit & 31);
        number |= value.checked_shl(shift)?;
        if digit & LAST == LAST {
            return Some(number);
        }
        shift += 5;
    }
}

/// The library's way to the words of a packed text.
#[derive(Clone, Default)]
pub(crate) struct Unpacker(Token);

pub(crate) struct Unpacked<'a> {
    left: &'a str,
    token: &'a mut Token,
}

impl Tokenizer for Unpacker {
    type TokenStream<'a> = Unpacked<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> Unpacked<'a> {
        self.0 = Token {
            position: 0,
            text: std::mem::take(&mut self.0.text),
            ..Token::default()
        };
        Unpacked {
            left: text,
            token: &mut self.0,
        }
    }
}

impl Unpacked<'_> {
    fn next(&mut self) -> Option<()> {
        let bytes = number(&mut self.left)?;
        let on = number(&mut self.left)?;
        let (word, left) = self.left.split_at_checked(bytes)?;
        self.left = left;
        self.token.text.clear();
        self.token.text.push_str(word);
        self.token.position = self.token.position.checked_add(on)?;
        Some(())
    }
}

impl TokenStream for Unpacked<'_> {
    fn advance(&mut self) -> bool {
        let more = !self.left.is_empty();
        let read = more && self.next().is_some();
        assert!(read || !more, "words are packed as they are unpacked");
        read
    }

    fn token(&self) -> &Token {
        self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(text: &str) -> Vec<(String, usize)> {
        let mut unpacker = Unpacker::default();
        let mut stream = unpacker.token_stream(text);
        let mut out = Vec::new();
        while stream.advance() {
            out.push((stream.token().text.clone(), stream.token().position));
        }
        out
    }

    #[test]
    fn words_are_the_same_behind_the_text() {
        let words = [
            (0, "the", 0),
            (300, "größe\u{1}@`", 0),
            (0, "", 1),
            (0, "fox", 33),
            (300, "x", 1 << 27),
        ];
        let mut backwards = Words::default();
        let each = words.iter().rev().copied();
        each.for_each(|(path, text, position)| backwards.push(path, text, position));
        let mut found = unpacked(&packed(backwards));
        found.sort();
        let named = |(path, text, position): (u32, &str, usize)| {
            (format!("{}{text}", word_prefix(path)), position)
        };
        let mut all: Vec<_> = words.into_iter().map(named).collect();
        all.sort();
        assert_eq!(found, all);
        assert!(unpacked("").is_empty());
    }

    #[test]
    fn numbers_of_all_sizes_come_back() {
        for n in [0, 1, 31, 32, 33, 1023, 1024, 1 << 20, usize::MAX >> 4] {
            let mut text = String::new();
            push_number(&mut text, n);
            assert_eq!(number(&mut text.as_str()), Some(n));
        }
    }
}
