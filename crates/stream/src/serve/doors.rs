//! Listeners, places, and a thread for each client.

use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use linux::{SyscallError, connections, socket};

use super::ServeError;
use super::lobby::{Arrived, Lobby, Rules};
use super::protocol::{Account, Protocol, Refused, Verdict};
use crate::limits::{Halt, Limits};

/// Connections that the kernel may hold for a door; it takes no more than `net.core.somaxconn`.
const BACKLOG: u16 = 4096;
/// How often a door looks whether the server is ending.
const TICK: Duration = Duration::from_millis(100);
/// Connections that may wait at one door, each for its first bytes.
const WAITING: usize = 256;
/// How long each of them may wait.
const FIRST_BYTES: Duration = Duration::from_secs(5);

/// Listening sockets, one for each protocol.
pub struct Server {
    doors: Vec<Door>,
    limits: Limits,
    halt: Halt,
}

struct Door {
    protocol: Box<dyn Protocol>,
    listener: TcpListener,
    address: SocketAddr,
}

/// What became of one client.
#[derive(Clone, Debug)]
pub struct Served {
    /// The name of its protocol.
    pub protocol: &'static str,
    /// Where it came from.
    pub peer: SocketAddr,
    /// From its first bytes to its end, where that is known.
    pub length: Option<Duration>,
    /// What was done, or why not.
    pub outcome: Result<Account, Refused>,
}

/// Who is told of each client, on the thread that served it.
pub type OnClient<'a> = &'a (dyn Fn(Served) + Sync);

/// Listens for a protocol at an address; port 0 lets the kernel choose one.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen(protocol: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    // The standard library's backlog of 128 is soon full: the kernel then drops the last packet of a handshake, and a client
    // that waits to be spoken to believes for ever that it is connected.
    let made = || {
        let socket = socket::stream(address, false)?;
        socket::set_reuse_address(&socket)?;
        connections::bind(&socket, address)?;
        connections::listen(socket, BACKLOG)
    };
    made().map_err(|error: SyscallError| ServeError::Listen { protocol, address, source: error.source })
}

impl Server {
    /// Will serve each protocol at its listening socket ([`listen`]).
    ///
    /// # Errors
    /// The kernel does not say where one of them listens.
    pub fn new(
        doors: Vec<(Box<dyn Protocol>, TcpListener)>,
        limits: Limits,
        halt: &Halt,
    ) -> Result<Self, ServeError> {
        let open = |(protocol, listener): (Box<dyn Protocol>, TcpListener)| {
            let name = protocol.name();
            let address =
                listener.local_addr().map_err(|source| ServeError::Address { protocol: name, source })?;
            Ok(Door { protocol, listener, address })
        };
        let doors = doors.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { doors, limits, halt: halt.clone() })
    }

    /// Where it listens for what.
    pub fn addresses(&self) -> Vec<(&'static str, SocketAddr)> {
        self.doors.iter().map(|door| (door.protocol.name(), door.address)).collect()
    }

    /// Serves until it is told to end; then all threads have ended.
    ///
    /// # Errors
    /// A door could not go on; all others were ended too.
    pub fn run(self, on_client: OnClient<'_>) -> Result<(), ServeError> {
        let Self { doors, limits, halt } = self;
        let hall = Hall { limits: &limits, halt: &halt, places: AtomicU32::new(limits.clients), on_client };
        let mut listeners = Vec::with_capacity(doors.len());
        for door in doors {
            let protocol = door.protocol.name();
            let rules = Rules {
                first_bytes: door.protocol.first_bytes(),
                most: WAITING,
                patience: limits.idle.min(FIRST_BYTES),
            };
            let lobby = Lobby::new(door.listener, rules).map_err(|source| ServeError::Listen {
                protocol,
                address: door.address,
                source,
            })?;
            listeners.push((door.protocol, lobby));
        }
        let (hall, listeners) = (&hall, &mut listeners);
        thread::scope(move |scope| {
            let mut threads = Vec::with_capacity(listeners.len());
            let mut result = Ok(());
            for (protocol, lobby) in listeners {
                let (name, protocol): (_, &dyn Protocol) = (protocol.name(), &**protocol);
                let attend = move || hall.attend(scope, protocol, lobby);
                match thread::Builder::new().name(format!("{name} door")).spawn_scoped(scope, attend) {
                    Ok(thread) => threads.push(thread),
                    Err(source) => {
                        hall.halt.halt();
                        result = Err(ServeError::Thread { protocol: name, source });
                    }
                }
            }
            for thread in threads {
                match thread.join() {
                    Ok(ended) => result = result.and(ended),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            result
        })
    }
}

/// What all doors share.
struct Hall<'a> {
    limits: &'a Limits,
    halt: &'a Halt,
    places: AtomicU32,
    on_client: OnClient<'a>,
}

/// A place of a client, given back when it is dropped.
struct Place<'a>(&'a AtomicU32);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Hall<'_> {
    /// The loop of one door.
    fn attend<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        protocol: &'scope dyn Protocol,
        lobby: &mut Lobby,
    ) -> Result<(), ServeError> {
        let mut clients: Vec<ScopedJoinHandle<'scope, ()>> = Vec::new();
        while !self.halt.is_halted() {
            let arrived = lobby.next(TICK, &|ip| self.limits.permits(ip)).map_err(|source| {
                self.halt.halt();
                ServeError::Wait { protocol: protocol.name(), source }
            })?;
            for arrived in arrived {
                match protocol.judge(&arrived.first) {
                    Verdict::Stranger => {}
                    Verdict::Joins => protocol.join(arrived.stream),
                    Verdict::Client => clients.extend(self.admit(scope, protocol, arrived)),
                }
            }
            clients.retain(|client| !client.is_finished());
            protocol.ended().into_iter().for_each(self.on_client);
        }
        protocol.finish();
        protocol.ended().into_iter().for_each(self.on_client);
        Ok(())
    }

    fn admit<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        protocol: &'scope dyn Protocol,
        arrived: Arrived,
    ) -> Option<ScopedJoinHandle<'scope, ()>> {
        let taken = self.places.fetch_update(Ordering::AcqRel, Ordering::Acquire, |free| free.checked_sub(1));
        if taken.is_err() {
            protocol.turn_away(arrived.stream, self.halt);
            return None;
        }
        let place = Place(&self.places);
        let Arrived { stream, peer, .. } = arrived;
        let serve = move || {
            let began = Instant::now();
            let served = catch_unwind(AssertUnwindSafe(|| protocol.serve(stream, self.limits, self.halt)));
            // Who is told of it may look for a free place.
            drop(place);
            let outcome =
                served.unwrap_or_else(|_| Err(Refused("the thread that served it panicked".into())));
            let (protocol, length) = (protocol.name(), Some(began.elapsed()));
            (self.on_client)(Served { protocol, peer, length, outcome });
        };
        // Without a thread there is no client; the connection is closed, the place is free again.
        thread::Builder::new().name(format!("{} client", protocol.name())).spawn_scoped(scope, serve).ok()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
