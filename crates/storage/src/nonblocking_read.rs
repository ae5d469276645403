//! Non-blocking reads: a thread that must not block records a cache miss instead of waiting for the
//! disk.
//!
//! Within [`without`], a read from a [cached-only view](crate::View::cached_only) takes what lies
//! in the block cache or in the system's page cache. On a miss the reader stops with
//! `Suspension::Read`, and the read that it would have done is recorded as a [`Missing`]. The
//! caller has these reads done and tries again with the bytes at hand as [`Block`]s, until nothing
//! is missing. One try records all reads that do not depend on each other, such as the records of a
//! query's keys.
//!
//! Invariant: misses are recorded only while a read of such a view is under way; every other read
//! of the thread goes to the disk.

use crate::encrypted_env::Env;
use rocksdb_sys as ffi;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::ptr;

/// The most reads that one try can note.
pub const ROOM: usize = 64;

/// A read that was not done.
#[derive(Debug)]
pub struct Missing {
    raw: RawRead,
}

/// Bytes that were brought for a [`Missing`].
#[derive(Debug)]
#[repr(C)]
pub struct Block<'a> {
    file: u64,
    offset: u64,
    asked: u64,
    bytes: *const u8,
    came: u64,
    _bytes: std::marker::PhantomData<&'a [u8]>,
}

// As in cpp/files.cc.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawRead {
    file: u64,
    offset: u64,
    length: u64,
    open: *mut c_void,
    fd: RawFd,
}

#[repr(C)]
struct Reads {
    blocks: *const Block<'static>,
    block_count: usize,
    missing: *mut RawRead,
    room: usize,
    missing_count: usize,
    refused: bool,
}

unsafe extern "C" {
    fn pando_files_use(options: *mut ffi::rocksdb_options_t, other: *mut c_void, syncs: bool);
    fn pando_reads_go_to(reads: *mut Reads);
    fn pando_file_close(open: *mut c_void);
    fn pando_let_one_in(of: u32);
    fn pando_reads_noted() -> u64;
}

/// Has a database that is opened with these options go through our files, encrypted ones where there is an environment for
/// them. `syncs`: whether plain ones are synced; encrypted ones always are.
pub(crate) fn use_files(options: &rocksdb::Options, encrypted: Option<Env>, syncs: bool) {
    use rocksdb::AsRawPtr;
    let other = encrypted.map_or(ptr::null_mut(), |env| env.0);
    // SAFETY: a setter on options that live; the environment that it sets lives for ever.
    unsafe { pando_files_use(options.as_raw_ptr(), other, syncs) }
}

/// Of so many reads one enters the page cache when the memory is full.
const ONE_IN: u32 = 32;

/// Checks now and then whether the page cache has room for the blocks that are read.
pub(crate) struct PageCacheRoom {
    has: Option<crate::store::HasRoom>,
    noted: u64,
}

impl PageCacheRoom {
    pub fn new(has: Option<crate::store::HasRoom>) -> PageCacheRoom {
        PageCacheRoom { has, noted: 0 }
    }

    /// Without reads the answer is not needed.
    pub fn look(&mut self) {
        // SAFETY: plain functions.
        let noted = unsafe { pando_reads_noted() };
        if std::mem::replace(&mut self.noted, noted) != noted
            && let Some(has) = &self.has
        {
            let of = if has() { 1 } else { ONE_IN };
            unsafe { pando_let_one_in(of) };
        }
    }
}

impl Missing {
    /// The open file; it stays open for as long as this lives.
    pub fn fd(&self) -> RawFd {
        self.raw.fd
    }

    /// Where the read begins and how long it is, in bytes; a file read past the page cache is read
    /// in whole sectors.
    pub fn place(&self) -> (u64, usize) {
        (self.raw.offset, self.raw.length as usize)
    }

    /// What the read brought: all of it, or less at the end of the file.
    pub fn brought<'a>(&self, bytes: &'a [u8]) -> Block<'a> {
        Block {
            file: self.raw.file,
            offset: self.raw.offset,
            asked: self.raw.length,
            bytes: bytes.as_ptr(),
            came: bytes.len() as u64,
            _bytes: std::marker::PhantomData,
        }
    }
}

// SAFETY: a number and a counted reference to an open file.
unsafe impl Send for Missing {}
unsafe impl Sync for Missing {}

impl Drop for Missing {
    fn drop(&mut self) {
        // SAFETY: noted once, given back once.
        unsafe { pando_file_close(self.raw.open) }
    }
}

/// What a thread notes.
struct Notes {
    reads: Reads,
    missing: Vec<RawRead>,
}

thread_local! {
    /// Whether this thread is within `without`.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static NOTES: RefCell<Notes> = const { RefCell::new(Notes {
        reads: Reads {
            blocks: ptr::null(),
            block_count: 0,
            missing: ptr::null_mut(),
            room: 0,
            missing_count: 0,
            refused: false,
        },
        missing: Vec::new(),
    }) };
}

/// Runs `work` with these blocks at hand, and gives what it gave and what it missed: nothing, too,
/// where it missed something that could not be noted.
pub fn without<T>(blocks: &[Block<'_>], work: impl FnOnce() -> T) -> (T, Vec<Missing>) {
    struct Within;
    impl Drop for Within {
        fn drop(&mut self) {
            ACTIVE.set(false);
            drop(end());
        }
    }
    NOTES.with_borrow_mut(|notes| {
        notes.missing.reserve_exact(ROOM);
        notes.reads = Reads {
            blocks: blocks.as_ptr().cast(),
            block_count: blocks.len(),
            missing: notes.missing.as_mut_ptr(),
            room: ROOM,
            missing_count: 0,
            refused: false,
        };
    });
    ACTIVE.set(true);
    let within = Within;
    let done = work();
    let missing = end();
    drop(within);
    (done, missing)
}

/// Ends the taking of notes.
fn end() -> Vec<Missing> {
    NOTES.with_borrow_mut(|notes| {
        let reads = &mut notes.reads;
        reads.blocks = ptr::null();
        reads.block_count = 0;
        reads.room = 0;
        let count = std::mem::take(&mut reads.missing_count);
        if count == 0 {
            return Vec::new();
        }
        // SAFETY: the other side has written so many, within the room that it was told of.
        unsafe { notes.missing.set_len(count) };
        let all = notes.missing.drain(..);
        let all: Vec<Missing> = all.map(|raw| Missing { raw }).collect();
        if reads.refused { Vec::new() } else { all }
    })
}

/// Whether this thread takes notes of what it misses.
pub(crate) fn active() -> bool {
    ACTIVE.get()
}

/// Takes notes for as long as it lives, if the thread is within [`without`].
pub(crate) struct Noting(bool);

impl Noting {
    /// `wanted`: whether the view shows only blocks in memory.
    #[inline]
    pub fn begin(wanted: bool) -> Noting {
        let noting = wanted && active();
        if noting {
            // SAFETY: the notes of this thread stay where they are; the other side forgets them
            // with the end of this value.
            NOTES.with(|notes| unsafe { pando_reads_go_to(&raw mut (*notes.as_ptr()).reads) });
        }
        Noting(noting)
    }
}

impl Drop for Noting {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: as in `begin`.
            unsafe { pando_reads_go_to(ptr::null_mut()) }
        }
    }
}
