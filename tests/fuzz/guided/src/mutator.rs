//! Bends documents as trees: nodes are replaced, wrapped, moved and renamed, so that most of what comes out is still a document
//! and some of it still means something. `FUZZ_WORDS` is a file of names to use (the dictionary that libFuzzer gets as well).

use bson::{Doc, Val, Value, Writer, tag};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::OnceLock;

#[derive(Clone)]
enum Tree {
    Doc(Vec<(String, Tree)>),
    Array(Vec<Tree>),
    Leaf(Value),
}

/// Operators (with `$`) and other names.
struct Words {
    operators: Vec<String>,
    names: Vec<String>,
}

fn words() -> &'static Words {
    static WORDS: OnceLock<Words> = OnceLock::new();
    WORDS.get_or_init(|| {
        let path = std::env::var("FUZZ_WORDS").unwrap_or_default();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let all = text.lines().map(|l| l.trim_matches('"').to_string());
        let (operators, names) = all
            .filter(|w| !w.is_empty())
            .partition(|w| w.starts_with('$'));
        Words { operators, names }
    })
}

fn pick<'a, T>(rng: &mut StdRng, from: &'a [T]) -> Option<&'a T> {
    from.get(rng.random_range(0..from.len().max(1)))
}

const FIELDS: &[&str] = &[
    "a", "b", "c", "n", "t", "d", "s", "x", "y", "_id", "a.x", "b.c", "b.d.e", "t.0", "a.$",
    "a.$[]", "c.$[x].d", "0", "", "z", "k",
];

const TEXTS: &[&str] = &[
    "$a",
    "$b.c",
    "$t",
    "$$x",
    "$$ROOT",
    "$$this",
    "$$value",
    "$$REMOVE",
    "$$NOW",
    "$d",
    "$n",
    "$s",
    "$a.x",
    "",
    "a",
    "aaa",
    "ä",
    "%Y-%m-%d",
    "2024-02-30",
    "Europe/Berlin",
    "+25:00",
    "day",
    "week",
    "month",
    "1e400",
    "-0",
    "NaN",
    "^a*$",
    "(a+)+$",
    "[",
    "im",
    "unbounded",
    "current",
    "other",
    "people",
    "int",
    "decimal",
    "string",
    "double",
    "objectId",
    "number",
];

fn operator(rng: &mut StdRng) -> String {
    pick(rng, &words().operators).map_or("$add".into(), Clone::clone)
}

fn name(rng: &mut StdRng) -> String {
    match rng.random_range(0..4) {
        0 => operator(rng),
        1 => pick(rng, &words().names).map_or("a".into(), Clone::clone),
        _ => pick(rng, FIELDS).map_or("a".into(), |f| f.to_string()),
    }
}

fn number(rng: &mut StdRng) -> i64 {
    const EDGES: &[i64] = &[
        0,
        1,
        -1,
        2,
        3,
        5,
        7,
        10,
        16,
        31,
        32,
        63,
        64,
        100,
        255,
        1000,
        65_536,
        i32::MAX as i64,
        i32::MIN as i64,
        i64::MAX,
        i64::MIN,
        1 << 31,
        1 << 53,
        1_700_000_000_000,
        8_640_000_000_000_000,
    ];
    let edge = pick(rng, EDGES).copied().unwrap_or(0);
    edge.wrapping_add(rng.random_range(-1..=1))
}

fn leaf(rng: &mut StdRng) -> Value {
    let n = number(rng);
    match rng.random_range(0..20) {
        0..5 => Value::from(n as i32),
        5 => Value::from(n),
        6 => Value::from(
            *pick(
                rng,
                &[
                    0.5,
                    -0.0,
                    f64::NAN,
                    f64::INFINITY,
                    f64::MIN_POSITIVE,
                    1e308,
                    1.5,
                ],
            )
            .unwrap_or(&0.0),
        ),
        7 => Value::from(n as f64),
        8 => {
            let mut bits = [0; 16];
            match rng.random_range(0..4) {
                0 => rng.fill(&mut bits[..]),
                1 => bits[15] = 0x7c,
                2 => bits[14..].copy_from_slice(&[0xfe, 0x5f]),
                _ => (bits[0], bits[14], bits[15]) = (n as u8, 0x40, 0x30),
            }
            Value::new(tag::DECIMAL128, &bits)
        }
        9 => Value::NULL,
        10 => Value::from(rng.random_bool(0.5)),
        11 => Value::date(n),
        12 => match rng.random_range(0..8) {
            0 => Value::timestamp(n as u64),
            1 => Value::regex(pick(rng, TEXTS).unwrap_or(&""), "i"),
            2 => Value::binary(rng.random_range(0..10), &n.to_le_bytes()),
            3 => Value::code("x"),
            4 => Value::symbol("x"),
            5 => Value::new(tag::UNDEFINED, &[]),
            6 => Value::new(tag::MIN_KEY, &[]),
            _ => Value::new(tag::OBJECT_ID, &[n as u8; 12]),
        },
        13 => Value::from(format!("${}", name(rng))),
        14 => Value::from(format!("$${}", name(rng))),
        15 => Value::from(name(rng)),
        _ => Value::from(*pick(rng, TEXTS).unwrap_or(&"")),
    }
}

impl Tree {
    fn of(v: Val<'_>) -> Tree {
        if let Some(d) = v.as_doc() {
            Tree::Doc(
                d.iter()
                    .map(|e| (e.name.to_string(), Tree::of(e.val)))
                    .collect(),
            )
        } else if let Some(d) = v.as_array() {
            Tree::Array(d.values().map(Tree::of).collect())
        } else {
            Tree::Leaf(v.to_value())
        }
    }

    fn value(&self) -> Value {
        match self {
            Tree::Leaf(v) => v.clone(),
            Tree::Doc(fields) => {
                let mut w = Writer::new();
                for (name, t) in fields {
                    w.val(&name.replace('\0', "0"), t.value().as_val());
                }
                Value::from(w.finish())
            }
            Tree::Array(items) => {
                let mut w = Writer::new_array();
                for t in items {
                    w.push(t.value().as_val());
                }
                w.finish_array()
            }
        }
    }

    fn children(&self) -> Vec<&Tree> {
        match self {
            Tree::Doc(fields) => fields.iter().map(|f| &f.1).collect(),
            Tree::Array(items) => items.iter().collect(),
            Tree::Leaf(_) => Vec::new(),
        }
    }

    fn count(&self) -> usize {
        1 + self.children().into_iter().map(Tree::count).sum::<usize>()
    }

    /// The node of that number, the tree itself being 0.
    fn at(&mut self, n: usize) -> &mut Tree {
        if n == 0 {
            return self;
        }
        let sizes: Vec<usize> = self.children().into_iter().map(Tree::count).collect();
        let (mut left, mut which) = (n - 1, 0);
        while let Some(size) = sizes.get(which).filter(|s| left >= **s) {
            left -= size;
            which += 1;
        }
        match self {
            Tree::Doc(fields) => match fields.get_mut(which) {
                Some((_, t)) => t.at(left),
                None => unreachable!("{n} is no node"),
            },
            Tree::Array(items) => items[which].at(left),
            Tree::Leaf(_) => self,
        }
    }

    fn any(&mut self, rng: &mut StdRng) -> &mut Tree {
        let n = rng.random_range(0..self.count());
        self.at(n)
    }
}

fn change(root: &mut Tree, rng: &mut StdRng) {
    let copy = root.clone().any(rng).clone();
    let at = root.any(rng);
    match rng.random_range(0..16) {
        0..3 => *at = Tree::Leaf(leaf(rng)),
        3 => *at = copy,
        4 => *at = Tree::Doc(vec![(operator(rng), at.clone())]),
        5 => *at = Tree::Array(vec![at.clone()]),
        6 => {
            let children = at.children();
            if let Some(child) = pick(rng, &children).map(|t| (*t).clone()) {
                *at = child;
            }
        }
        7 | 8 => match at {
            Tree::Doc(fields) => {
                let to = rng.random_range(0..=fields.len());
                let new = if rng.random_bool(0.5) {
                    copy
                } else {
                    Tree::Leaf(leaf(rng))
                };
                fields.insert(to, (name(rng), new));
            }
            Tree::Array(items) => {
                let to = rng.random_range(0..=items.len());
                let new = if rng.random_bool(0.5) {
                    copy
                } else {
                    Tree::Leaf(leaf(rng))
                };
                items.insert(to, new);
            }
            Tree::Leaf(_) => *at = Tree::Array(vec![at.clone(), Tree::Leaf(leaf(rng))]),
        },
        9 => match at {
            Tree::Doc(fields) if !fields.is_empty() => {
                fields.remove(rng.random_range(0..fields.len()));
            }
            Tree::Array(items) if !items.is_empty() => {
                items.remove(rng.random_range(0..items.len()));
            }
            other => *other = Tree::Leaf(leaf(rng)),
        },
        10..13 => match at {
            Tree::Doc(fields) if !fields.is_empty() => {
                let which = rng.random_range(0..fields.len());
                let new = match fields[which].0.starts_with('$') {
                    true => operator(rng),
                    false => name(rng),
                };
                fields[which].0 = new;
            }
            Tree::Leaf(v) => bend_leaf(v, rng),
            _ => {}
        },
        13 => match at {
            Tree::Doc(fields) if fields.len() > 1 => {
                let (a, b) = (
                    rng.random_range(0..fields.len()),
                    rng.random_range(0..fields.len()),
                );
                fields.swap(a, b);
            }
            Tree::Array(items) if items.len() > 1 => {
                let (a, b) = (
                    rng.random_range(0..items.len()),
                    rng.random_range(0..items.len()),
                );
                items.swap(a, b);
            }
            _ => {}
        },
        _ => {
            if let Tree::Leaf(v) = at {
                bend_leaf(v, rng);
            }
        }
    }
}

/// Texts by libFuzzer, which has its dictionary and the compared values; numbers by their edges and
/// types.
fn bend_leaf(v: &mut Value, rng: &mut StdRng) {
    if let Some(text) = v.as_val().str_bytes() {
        let mut buf = text.to_vec();
        let room = buf.len() + 16;
        let size = buf.len();
        buf.resize(room, 0);
        let size = libfuzzer_sys::fuzzer_mutate(&mut buf, size, room);
        buf.truncate(size);
        *v = Value::from(String::from_utf8_lossy(&buf).into_owned());
    } else if let Some(n) = v.as_val().to_f64() {
        let n = match rng.random_range(0..4) {
            0 => n + 1.0,
            1 => -n,
            2 => n * 2.0,
            _ => n - 1.0,
        };
        *v = match rng.random_range(0..3) {
            0 => Value::from(n as i32),
            1 => Value::from(n as i64),
            _ => Value::from(n),
        };
    } else {
        *v = leaf(rng);
    }
}

fn parse(bytes: &[u8]) -> Option<Tree> {
    match bson::validate(bytes) {
        Ok(doc) => Some(Tree::of(doc.as_val())),
        Err(_) => bson::json::parse_value(std::str::from_utf8(bytes).ok()?)
            .ok()
            .map(|v| Tree::of(v.as_val())),
    }
}

/// Anything but a document becomes `{pipeline: …}`, as the targets read it.
fn put(tree: Tree, out: &mut [u8]) -> Option<usize> {
    let root = match tree {
        Tree::Doc(_) => tree,
        other => Tree::Doc(vec![("pipeline".into(), other)]),
    };
    let value = root.value();
    let bytes = value.as_val().as_doc().map(Doc::as_bytes)?;
    out.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(bytes.len())
}

pub fn bend(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = StdRng::seed_from_u64(u64::from(seed));
    if rng.random_range(0..10) > 0
        && let Some(mut tree) = data.get(..size).and_then(parse)
    {
        for _ in 0..rng.random_range(1..4) {
            change(&mut tree, &mut rng);
        }
        let room = max_size.min(data.len());
        if let Some(n) = put(tree, &mut data[..room]) {
            return n;
        }
    }
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
}

pub fn cross(one: &[u8], other: &[u8], out: &mut [u8], seed: u32) -> usize {
    let mut rng = StdRng::seed_from_u64(u64::from(seed));
    if let (Some(mut a), Some(mut b)) = (parse(one), parse(other)) {
        *a.any(&mut rng) = b.any(&mut rng).clone();
        if let Some(n) = put(a, out) {
            return n;
        }
    }
    splice(one, other, out, seed)
}

pub fn splice(one: &[u8], other: &[u8], out: &mut [u8], seed: u32) -> usize {
    let mut rng = StdRng::seed_from_u64(u64::from(seed));
    let head = &one[..rng.random_range(0..=one.len())];
    let tail = &other[rng.random_range(0..=other.len())..];
    let all: Vec<u8> = head.iter().chain(tail).copied().take(out.len()).collect();
    out[..all.len()].copy_from_slice(&all);
    all.len()
}
