//! The type byte of a BSON element, and MongoDB's names and comparison ranks of types.

pub const DOUBLE: u8 = 0x01;
pub const STRING: u8 = 0x02;
pub const DOCUMENT: u8 = 0x03;
pub const ARRAY: u8 = 0x04;
pub const BINARY: u8 = 0x05;
pub const UNDEFINED: u8 = 0x06;
pub const OBJECT_ID: u8 = 0x07;
pub const BOOL: u8 = 0x08;
pub const DATE: u8 = 0x09;
pub const NULL: u8 = 0x0A;
pub const REGEX: u8 = 0x0B;
pub const DB_POINTER: u8 = 0x0C;
pub const CODE: u8 = 0x0D;
pub const SYMBOL: u8 = 0x0E;
pub const CODE_WITH_SCOPE: u8 = 0x0F;
pub const INT32: u8 = 0x10;
pub const TIMESTAMP: u8 = 0x11;
pub const INT64: u8 = 0x12;
pub const DECIMAL128: u8 = 0x13;
pub const MIN_KEY: u8 = 0xFF;
pub const MAX_KEY: u8 = 0x7F;

/// MongoDB's alias for a type, as `$type` takes it and error messages print it.
pub fn name(tag: u8) -> &'static str {
    match tag {
        DOUBLE => "double",
        STRING => "string",
        DOCUMENT => "object",
        ARRAY => "array",
        BINARY => "binData",
        UNDEFINED => "undefined",
        OBJECT_ID => "objectId",
        BOOL => "bool",
        DATE => "date",
        NULL => "null",
        REGEX => "regex",
        DB_POINTER => "dbPointer",
        CODE => "javascript",
        SYMBOL => "symbol",
        CODE_WITH_SCOPE => "javascriptWithScope",
        INT32 => "int",
        TIMESTAMP => "timestamp",
        INT64 => "long",
        DECIMAL128 => "decimal",
        MIN_KEY => "minKey",
        MAX_KEY => "maxKey",
        _ => "missing",
    }
}

/// The rank of a type in comparisons (`canonicalizeBSONType` in MongoDB's terms): types of one rank compare by value.
pub fn rank(tag: u8) -> u8 {
    match tag {
        MIN_KEY => 1,
        UNDEFINED => 2,
        NULL => 5,
        DOUBLE | INT32 | INT64 | DECIMAL128 => 10,
        STRING | SYMBOL => 15,
        DOCUMENT => 20,
        ARRAY => 25,
        BINARY => 30,
        OBJECT_ID => 35,
        BOOL => 40,
        DATE => 45,
        TIMESTAMP => 47,
        REGEX => 50,
        DB_POINTER => 55,
        CODE => 60,
        CODE_WITH_SCOPE => 65,
        MAX_KEY => 127,
        _ => 2,
    }
}

pub fn is_number(tag: u8) -> bool {
    matches!(tag, DOUBLE | INT32 | INT64 | DECIMAL128)
}
