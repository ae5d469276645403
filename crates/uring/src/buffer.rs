//! Memory that reads come to, aligned as reads past the page cache need it.
//!
//! Invariant: `bytes` shows only memory that was written.

/// Where a buffer begins is a multiple of this, and so is how long it is; in bytes.
pub const PAGE: usize = 4096;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

#[derive(Debug)]
pub struct Buffer {
    pages: Vec<Page>,
    /// How many bytes were written.
    len: usize,
}

impl Buffer {
    fn with_pages(pages: usize) -> Buffer {
        Buffer {
            pages: Vec::with_capacity(pages),
            len: 0,
        }
    }

    /// In bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.pages.capacity().saturating_mul(PAGE)
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }

    /// # Safety
    /// The first `len` bytes were written, and `len` is at most the capacity.
    pub(crate) unsafe fn set_len(&mut self, len: usize) {
        self.len = len;
    }

    /// The bytes that were read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: pages are bytes, and the first `len` of them were written (`set_len`).
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

/// Buffers kept for the next reads.
#[derive(Debug)]
pub struct Buffers {
    spare: Vec<Buffer>,
    most: usize,
    shortest_pages: usize,
    longest_pages: usize,
}

impl Buffers {
    /// Keeps at most `most` buffers, none longer than `longest_pages`; a new one has at least
    /// `shortest_pages`.
    pub const fn new(most: usize, shortest_pages: usize, longest_pages: usize) -> Buffers {
        Buffers {
            spare: Vec::new(),
            most,
            shortest_pages,
            longest_pages,
        }
    }

    /// An empty buffer for a read of `len` bytes.
    pub fn take(&mut self, len: usize) -> Buffer {
        let pages = len.div_ceil(PAGE);
        match self.spare.pop() {
            Some(spare) if spare.pages.capacity() >= pages => spare,
            _ => Buffer::with_pages(pages.max(self.shortest_pages)),
        }
    }

    pub fn give(&mut self, mut buffer: Buffer) {
        if self.spare.len() < self.most && buffer.pages.capacity() <= self.longest_pages {
            buffer.len = 0;
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_kept_within_bounds() {
        let mut buffers = Buffers::new(2, 2, 4);
        let short = buffers.take(1);
        assert_eq!(short.capacity(), 2 * PAGE);
        assert_eq!(short.bytes(), b"");
        assert_eq!(short.pages.as_ptr() as usize % PAGE, 0);
        let long = buffers.take(4 * PAGE + 1);
        assert_eq!(long.capacity(), 5 * PAGE);
        let at = short.pages.as_ptr();
        buffers.give(long);
        buffers.give(short);
        assert_eq!(buffers.spare.len(), 1);
        let again = buffers.take(2 * PAGE);
        assert_eq!(again.pages.as_ptr(), at);
        for _ in 0..3 {
            buffers.give(Buffer::with_pages(1));
        }
        assert_eq!(buffers.spare.len(), 2);
        // One that is too short for the read is let go.
        assert_eq!(buffers.take(3 * PAGE).capacity(), 3 * PAGE);
    }
}
