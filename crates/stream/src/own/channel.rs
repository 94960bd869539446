//! The control connection: messages in frames, in the clear or encrypted.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::error::{OwnError, readable};
use super::wire::{Frames, Message, SMALL_FRAME, WireError, frame};
use crate::limits::Halt;

/// The largest message of Noise (its specification, section 3).
const NOISE_MESSAGE: usize = 65535;
/// What authenticates each of them.
const NOISE_TAG: usize = 16;
/// How long a call on the socket waits before it looks whether this process is ending.
const TICK: Duration = Duration::from_millis(50);

/// One control connection.
pub(super) struct Channel {
    stream: TcpStream,
    cipher: Option<snow::TransportState>,
    /// Encrypted bytes that came and are no whole record yet.
    records: Vec<u8>,
    frames: Frames,
    /// The largest frame that is taken.
    pub(super) most: usize,
    /// The end of this process.
    halt: Halt,
    /// When the last whole message came.
    pub(super) heard: Instant,
}

impl Channel {
    /// A connection on which nothing was exchanged yet.
    pub(super) fn new(stream: TcpStream, halt: &Halt) -> Result<Self, OwnError> {
        let set = |result: std::io::Result<()>| {
            result.map_err(|error| OwnError::io("set options of the control connection", error))
        };
        set(stream.set_nodelay(true))?;
        set(stream.set_nonblocking(false))?;
        set(stream.set_write_timeout(Some(TICK)))?;
        Ok(Self {
            stream,
            cipher: None,
            records: Vec::new(),
            frames: Frames::default(),
            most: SMALL_FRAME,
            halt: halt.clone(),
            heard: Instant::now(),
        })
    }

    /// All that follows is encrypted.
    pub(super) fn encrypt(&mut self, cipher: snow::TransportState) {
        self.cipher = Some(cipher);
    }

    /// This end's address.
    pub(super) fn local(&self) -> Result<SocketAddr, OwnError> {
        self.stream.local_addr().map_err(|error| OwnError::io("ask for the address of this end", error))
    }

    /// The other end's address.
    pub(super) fn peer(&self) -> Result<SocketAddr, OwnError> {
        self.stream.peer_addr().map_err(|error| OwnError::io("ask for the address of the other end", error))
    }

    /// So many bytes as they are, within `patience`: before there are frames.
    pub(super) fn read_exactly(
        &mut self,
        bytes: &mut [u8],
        patience: Duration,
        until: &'static str,
    ) -> Result<(), OwnError> {
        let began = Instant::now();
        let mut filled = 0;
        while filled < bytes.len() {
            if began.elapsed() >= patience {
                return Err(OwnError::Silent { after: patience, until });
            }
            filled += self.read_some(&mut bytes[filled..], TICK, until)?;
        }
        Ok(())
    }

    /// Bytes as they are, within `patience`.
    pub(super) fn write_all(&mut self, mut bytes: &[u8], patience: Duration) -> Result<(), OwnError> {
        let began = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_no_error(error.kind()) => {
                    if self.halt.is_halted() {
                        return Err(OwnError::Halted);
                    }
                }
                Err(error) => return Err(OwnError::io("write to the control connection", error)),
            }
            if !bytes.is_empty() && began.elapsed() >= patience {
                return Err(OwnError::SlowReader { after: patience });
            }
        }
        Ok(())
    }

    /// Sends a message of at most `most` bytes; gives up when it is not taken within `patience`.
    pub(super) fn send(
        &mut self,
        message: &Message,
        most: usize,
        patience: Duration,
    ) -> Result<(), OwnError> {
        let plain = frame(message, most).map_err(OwnError::TooLong)?;
        let Some(cipher) = &mut self.cipher else { return self.write_all(&plain, patience) };
        let mut out = Vec::with_capacity(plain.len() + plain.len() / 1000 + 64);
        let mut record = vec![0; NOISE_MESSAGE];
        for piece in plain.chunks(NOISE_MESSAGE - NOISE_TAG) {
            let length = cipher.write_message(piece, &mut record).map_err(OwnError::Cipher)?;
            out.extend_from_slice(&(length as u16).to_be_bytes());
            out.extend_from_slice(&record[..length]);
        }
        self.write_all(&out, patience)
    }

    /// The next message, where one comes within `wait`. An error that the other end tells is an error here.
    pub(super) fn receive(
        &mut self,
        wait: Duration,
        until: &'static str,
    ) -> Result<Option<Message>, OwnError> {
        let began = Instant::now();
        loop {
            if let Some(message) = self.frames.next(self.most).map_err(OwnError::Wire)? {
                self.heard = Instant::now();
                return match message {
                    Message::Error { message } => Err(OwnError::Peer(readable(&message))),
                    message => Ok(Some(message)),
                };
            }
            let left = wait.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let mut piece = [0; 16 << 10];
            let count = self.read_some(&mut piece, left.min(TICK), until)?;
            self.take(&piece[..count])?;
        }
    }

    /// The next message, which must come within `patience`; the other end's signs of life are passed over.
    pub(super) fn expect(&mut self, patience: Duration, until: &'static str) -> Result<Message, OwnError> {
        let began = Instant::now();
        loop {
            let left = patience.saturating_sub(began.elapsed());
            match self.receive(left, until)? {
                Some(Message::Alive) => {}
                Some(message) => return Ok(message),
                None => return Err(OwnError::Silent { after: patience, until }),
            }
        }
    }

    /// Tells the other end why it goes no further, as far as it listens.
    pub(super) fn give_up(&mut self, error: &OwnError) {
        // A peer that is gone, or that told us itself, needs no reason.
        if matches!(error, OwnError::Peer(_) | OwnError::Closed { .. } | OwnError::SlowReader { .. }) {
            return;
        }
        let message = Message::Error { message: error.to_string() };
        // It is the last word; whether it was heard changes nothing.
        let _ = self.send(&message, SMALL_FRAME, Duration::from_millis(200));
    }

    /// Reads what there is, within about `wait`; 0 where there was nothing.
    fn read_some(
        &mut self,
        bytes: &mut [u8],
        wait: Duration,
        until: &'static str,
    ) -> Result<usize, OwnError> {
        if self.halt.is_halted() {
            return Err(OwnError::Halted);
        }
        // A timeout of nothing would be none at all.
        let wait = wait.max(Duration::from_millis(1));
        self.stream
            .set_read_timeout(Some(wait))
            .map_err(|error| OwnError::io("set the timeout of the control connection", error))?;
        match self.stream.read(bytes) {
            Ok(0) => Err(OwnError::Closed { until }),
            Ok(count) => Ok(count),
            Err(error) if is_no_error(error.kind()) => Ok(0),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                Err(OwnError::Closed { until })
            }
            Err(error) => Err(OwnError::io("read from the control connection", error)),
        }
    }

    /// Bytes that came: decrypted where they are encrypted, as far as records are whole.
    fn take(&mut self, bytes: &[u8]) -> Result<(), OwnError> {
        let Some(cipher) = &mut self.cipher else {
            self.frames.push(bytes);
            return Ok(());
        };
        self.records.extend_from_slice(bytes);
        let mut plain = vec![0; NOISE_MESSAGE];
        let mut taken = 0;
        while let Some(header) = self.records[taken..].first_chunk::<2>() {
            let length = usize::from(u16::from_be_bytes(*header));
            if length <= NOISE_TAG {
                let error = WireError::Length { length: length as u64, most: NOISE_MESSAGE };
                return Err(OwnError::Wire(error));
            }
            let Some(record) = self.records.get(taken + 2..taken + 2 + length) else { break };
            let count = cipher.read_message(record, &mut plain).map_err(OwnError::Cipher)?;
            self.frames.push(&plain[..count]);
            taken += 2 + length;
        }
        self.records.drain(..taken);
        Ok(())
    }
}

/// Whether a call on a socket with a timeout says only that it was not ready.
fn is_no_error(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
