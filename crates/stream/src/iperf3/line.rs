//! The control connection: reads that end at a deadline, however slowly the other end writes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::error::WireError;
use super::wire::{self, Cookie, State};

/// A control connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: TcpStream,
    /// How long one message may take, from its first byte or from when it is waited for.
    patience: Duration,
}

impl Line {
    /// A connection of which nothing is known yet: none of its options is changed.
    pub(super) fn unknown(stream: TcpStream, patience: Duration) -> Self {
        Self { stream, patience }
    }

    /// Prepares a control connection: nothing waits for more to be sent, and a peer that vanished is found out by the kernel.
    pub(super) fn new(stream: TcpStream, patience: Duration) -> Result<Self, WireError> {
        stream.set_nodelay(true).map_err(|source| WireError::io("set TCP_NODELAY", source))?;
        stream.set_write_timeout(Some(patience)).map_err(|source| WireError::io("set a timeout", source))?;
        // A peer that is gone is noticed after half of the time and three probes in the other half.
        linux::socket::set_keep_alive(&stream, patience / 2, patience / 6, 3)
            .map_err(|error| WireError::io("set keep-alive", io::Error::other(error)))?;
        Ok(Self { stream, patience })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn timed(&self) -> Timed<'_> {
        Timed { stream: &self.stream, deadline: Instant::now() + self.patience }
    }

    pub(super) fn read_cookie(&self) -> Result<Cookie, WireError> {
        let mut bytes = [0; wire::COOKIE_BYTES];
        self.timed().read_exact(&mut bytes).map_err(|source| WireError::io("read a cookie", source))?;
        Cookie::parse(bytes)
    }

    pub(super) fn read_json(&self, limit: u32) -> Result<Value, WireError> {
        wire::read_json(&mut self.timed(), limit)
    }

    pub(super) fn read_error(&self) -> Result<(i32, i32), WireError> {
        wire::read_error(&mut self.timed())
    }

    pub(super) fn write_cookie(&self, cookie: &Cookie) -> Result<(), WireError> {
        (&self.stream)
            .write_all(cookie.as_bytes())
            .map_err(|source| WireError::io("write the cookie", source))
    }

    pub(super) fn write_json(&self, value: &Value) -> Result<(), WireError> {
        wire::write_json(&mut &self.stream, value)
    }

    pub(super) fn write_state(&self, state: State) -> Result<(), WireError> {
        wire::write_state(&mut &self.stream, state)
    }

    pub(super) fn write_error(&self, number: i32) -> Result<(), WireError> {
        wire::write_error(&mut &self.stream, number, 0)
    }

    /// The next state if one comes within a time; none if none does.
    pub(super) fn poll_state(&self, within: Duration) -> Result<Option<State>, WireError> {
        let mut timed = Timed { stream: &self.stream, deadline: Instant::now() + within };
        match wire::read_state(&mut timed) {
            Ok(state) => Ok(Some(state)),
            Err(error) if error.is_silence() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads until a deadline.
struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        // A timeout of less than a microsecond would be none at all.
        self.stream.set_read_timeout(Some(left.max(Duration::from_micros(1))))?;
        self.stream.read(into)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(patience: Duration) -> (Line, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Line::new(listener.accept().unwrap().0, patience).unwrap(), far)
    }

    #[test]
    fn who_says_nothing_is_silent_and_who_leaves_is_gone() {
        let (line, far) = pair(Duration::from_secs(5));
        assert!(line.poll_state(Duration::from_millis(1)).unwrap().is_none());
        drop(far);
        assert!(matches!(line.poll_state(Duration::from_secs(5)), Err(WireError::Io { .. })));
    }

    #[test]
    fn a_byte_now_and_then_does_not_extend_the_deadline() {
        let (line, mut far) = pair(Duration::from_millis(200));
        let dripping = std::thread::spawn(move || {
            while far.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let error = line.read_cookie().unwrap_err();
        assert!(error.is_silence(), "{error}");
        drop(line);
        dripping.join().unwrap();
    }
}
