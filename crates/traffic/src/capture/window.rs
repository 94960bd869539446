//! A bounded part of a file in memory.

use std::io::{self, Read};

/// Room for a while of small packets: a system call for each 128 KiB.
const ROOM_BYTES: usize = 128 * 1024;

/// Reads ahead of what is consumed, and knows the offset.
#[derive(Debug)]
pub(super) struct Window<R> {
    reader: R,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    at_end: bool,
    #[cfg(test)]
    pub(super) moved: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            bytes: vec![0; ROOM_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            at_end: false,
            #[cfg(test)]
            moved: 0,
        }
    }

    /// How many bytes were consumed: where in the file the window starts.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next bytes, all that are in memory: at least `wanted`, or fewer where the file ends before.
    pub(super) fn peek(&mut self, wanted: usize) -> io::Result<&[u8]> {
        while self.end - self.start < wanted && !self.at_end {
            if self.bytes.len() - self.start < wanted {
                self.make_room(wanted);
            }
            match self.reader.read(&mut self.bytes[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(read) => self.end = (self.end + read).min(self.bytes.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.bytes[self.start..self.end])
    }

    /// Goes on by `bytes`, at most to the end of what was peeked at.
    pub(super) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.end - self.start);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Goes on by `bytes` without holding them. Returns how many there were before the end of the file.
    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        let mut left = bytes;
        while left > 0 {
            let there = self.peek(1)?.len();
            if there == 0 {
                break;
            }
            let part = usize::try_from(left).map_or(there, |left| left.min(there));
            self.consume(part);
            left -= part as u64;
        }
        Ok(bytes - left)
    }

    /// Twice what is wanted, so that a search that goes on byte by byte moves each byte a few times at most.
    fn make_room(&mut self, wanted: usize) {
        self.bytes.copy_within(self.start..self.end, 0);
        #[cfg(test)]
        {
            self.moved += (self.end - self.start) as u64;
        }
        self.end -= self.start;
        self.start = 0;
        if self.bytes.len() < 2 * wanted {
            self.bytes.resize(2 * wanted, 0);
        }
    }

    #[cfg(test)]
    pub(super) fn room_bytes(&self) -> usize {
        self.bytes.len()
    }
}
