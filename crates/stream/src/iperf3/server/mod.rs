//! A server for clients of iperf3: several at once.
//!
//! All TCP connections of all clients come to one listener. Each begins with a cookie, which says to which test it belongs;
//! one with a new cookie is a new test. The listener is not here: who has it hands each connection to [`Server::take`],
//! which returns at once. UDP streams come to the port of the same number, and are given to the test of the address they
//! come from: nothing is ever sent to an address that has not opened a control connection and sent a hello from a
//! UDP socket of its own.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Server`]: which connection belongs to which test |
//! | `hub` | the UDP port: hellos, and the sockets that are made for them |
//! | `session` | one test from its cookie to its results |

mod hub;
mod session;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linux::SyscallError;

use self::hub::Hub;
pub(super) use self::session::{join, wait_until_quiet};
use super::auth::Guard;
use super::error::{Refusal, WireError};
use super::line::Line;
use super::parameters::STREAMS_MAX;
use super::wire::{Cookie, State};
use crate::engine::EngineError;
use crate::limits::{Halt, LimitError, Limits};
use crate::outcome::Exchanged;
use crate::plan::Plan;

/// Connections that have not said yet what they are, at most: one more is closed.
const UNKNOWN_MAX: usize = 1024;
/// How long a connection may take to say what it is, at most.
const COOKIE_PATIENCE: Duration = Duration::from_secs(10);
/// Stack of the threads that hold connections: they call nothing deep.
const STACK_BYTES: usize = 512 * 1024;

/// How a server is run.
#[derive(Debug, Default)]
pub struct Settings {
    /// What it grants.
    pub limits: Limits,
    /// Who may have a test; none: everybody.
    pub guard: Option<Guard>,
    /// How often a period ends in the output that a client can ask for (`--get-server-output`).
    pub interval: Option<Duration>,
}

/// What happened to a test.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It ended as it should.
    Ended {
        /// The client.
        from: SocketAddr,
        /// What was asked for.
        plan: &'a Plan,
        /// What both ends counted.
        exchanged: &'a Exchanged,
    },
    /// It did not.
    Failed {
        /// The client.
        from: SocketAddr,
        /// Why.
        error: &'a SessionError,
    },
}

type Observer = Box<dyn Fn(&Event<'_>) + Send + Sync>;

/// Why a test did not end as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The control connection.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The client was told one of iperf3's numbers.
    #[error("the client was told that its test cannot be: {0:?}")]
    Refused(Refusal),
    /// What was asked for is above a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Who it is was not believed.
    #[error(transparent)]
    Auth(#[from] super::auth::AuthError),
    /// Moving the bytes.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A socket of a stream.
    #[error(transparent)]
    Kernel(#[from] SyscallError),
    /// As many clients as there may be are there.
    #[error("the server has as many clients as it may have; one more was told to come back later")]
    Busy,
    /// The client said that it gives up, or left.
    #[error("the client ended the test without wanting results")]
    ClientEnded,
    /// The server is ending.
    #[error("the server is ending")]
    Halted,
    /// A connection that is not of the test that it names.
    #[error("a connection from {from} names a test of another address, or one that wants no streams")]
    Stray {
        /// From where.
        from: SocketAddr,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    halt: Halt,
    hub: Arc<Hub>,
    observer: Option<Observer>,
    /// Tests that want connections, or run.
    tests: Mutex<HashMap<Cookie, Test>>,
    unknown: AtomicUsize,
    ticket: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("settings", &self.settings)
            .field("tests", &self.tests)
            .finish_non_exhaustive()
    }
}

/// A stream, with its place in the order in which connections were accepted: threads may read their cookies in another.
type Ticketed = (u64, TcpStream);

#[derive(Debug)]
struct Test {
    ip: IpAddr,
    streams: SyncSender<Ticketed>,
}

impl Server {
    /// Begins to listen on the UDP port of an address: the same as that of the TCP listener.
    ///
    /// # Errors
    /// The port cannot be had, or no thread.
    pub fn new(address: SocketAddr, settings: Settings, halt: Halt) -> Result<Self, SyscallError> {
        Self::with_observer(address, settings, halt, None)
    }

    /// The same, and `observer` is told of each test that has ended, on that test's thread.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn with_observer(
        address: SocketAddr,
        settings: Settings,
        halt: Halt,
        observer: Option<Observer>,
    ) -> Result<Self, SyscallError> {
        let hub = Hub::open(address, halt.clone())?;
        let shared = Shared {
            settings,
            halt,
            hub,
            observer,
            tests: Mutex::default(),
            unknown: AtomicUsize::new(0),
            ticket: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Takes a connection: the control connection of a new test, or a stream of one. Returns at once; connections have
    /// to be given in the order in which they were accepted.
    pub fn take(&self, connection: TcpStream) {
        let shared = Arc::clone(&self.shared);
        let ticket = shared.ticket.fetch_add(1, Relaxed);
        if shared.unknown.fetch_add(1, Relaxed) >= UNKNOWN_MAX || shared.halt.is_halted() {
            shared.unknown.fetch_sub(1, Relaxed);
            return;
        }
        let spawned = std::thread::Builder::new().name("iperf3".into()).stack_size(STACK_BYTES).spawn({
            let shared = Arc::clone(&shared);
            move || shared.meet(connection, ticket)
        });
        if spawned.is_err() {
            shared.unknown.fetch_sub(1, Relaxed); // the connection is closed
        }
    }

    /// How many tests there are now.
    pub fn clients(&self) -> usize {
        self.shared.tests().len()
    }
}

impl Shared {
    fn tests(&self) -> MutexGuard<'_, HashMap<Cookie, Test>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds out what a connection is, and does it.
    fn meet(&self, connection: TcpStream, ticket: u64) {
        let from = connection.peer_addr();
        let greeted = self.greet(connection);
        self.unknown.fetch_sub(1, Relaxed);
        let Ok(from) = from else { return };
        let result = greeted.and_then(|(line, cookie)| self.serve(line, cookie, from, ticket));
        if let (Err(error), Some(observer)) = (&result, &self.observer) {
            observer(&Event::Failed { from, error });
        }
    }

    fn greet(&self, connection: TcpStream) -> Result<(Line, Cookie), SessionError> {
        let line = Line::unknown(connection, self.settings.limits.idle.min(COOKIE_PATIENCE));
        let cookie = line.read_cookie()?;
        Ok((line, cookie))
    }

    fn serve(&self, line: Line, cookie: Cookie, from: SocketAddr, ticket: u64) -> Result<(), SessionError> {
        let ip = from.ip().to_canonical();
        let streams = match self.enter(cookie, ip) {
            Entry::New(streams) => streams,
            Entry::Stream(to) => {
                // One more than is wanted is closed.
                return to.try_send((ticket, line.into_stream())).map_err(|_| SessionError::Stray { from });
            }
            Entry::Busy => {
                line.write_state(State::AccessDenied)?;
                return Err(SessionError::Busy);
            }
            Entry::Stray => {
                line.write_state(State::AccessDenied)?;
                return Err(SessionError::Stray { from });
            }
        };
        let line = Line::new(line.into_stream(), self.settings.limits.idle)?;
        let result = session::run(self, &line, cookie, from, &streams);
        self.tests().remove(&cookie);
        if let Err(error) = &result {
            session::tell(&line, error);
        }
        result
    }

    fn enter(&self, cookie: Cookie, ip: IpAddr) -> Entry {
        let mut tests = self.tests();
        if let Some(test) = tests.get(&cookie) {
            return if test.ip == ip { Entry::Stream(test.streams.clone()) } else { Entry::Stray };
        }
        if !self.settings.limits.permits(ip) || tests.len() >= self.settings.limits.clients as usize {
            return Entry::Busy;
        }
        let (sender, receiver) = sync_channel(2 * STREAMS_MAX as usize);
        tests.insert(cookie, Test { ip, streams: sender });
        Entry::New(receiver)
    }
}

/// What a cookie means.
enum Entry {
    /// A new test.
    New(Receiver<Ticketed>),
    /// A stream of a test.
    Stream(SyncSender<Ticketed>),
    /// There are too many tests, or none from there.
    Busy,
    /// A test of somebody else.
    Stray,
}
