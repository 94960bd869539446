//! The other end on a host that was named, asked by a protocol.

use std::env;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use stream::engine::Control;
use stream::iperf3::auth::{Login, Padding, public_key};
use stream::iperf3::client as iperf3;
use stream::limits::Halt;
use stream::netperf::client as netperf;
use stream::own::Key;
use stream::own::client as own;
use stream::plan::Plan;

use super::arrange::{Arranged, Asked, Beside, Buffers};
use super::local::Ended;
use super::setting::Over;
use super::sockets;
use crate::scenario::StreamCell;
use crate::stop::Stop;

/// How long the other end may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Where the password for iperf3 is, as iperf3 has it.
const PASSWORD: &str = "IPERF3_PASSWORD";

/// By what the other end is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Protocol {
    // Comments of variants that are documentation would be in the help, and make it twice as long.
    // Of `perpacket serve`.
    #[default]
    Own,
    // Of netserver 2.7.0 or later, and of `perpacket serve`.
    Netperf,
    // Of `iperf3 -s`, and of `perpacket serve`.
    Iperf3,
}

impl Protocol {
    /// As a sentence has it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Own => "perpacket's protocol",
            Self::Netperf => "netperf's protocol",
            Self::Iperf3 => "iperf3's protocol",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Own => stream::own::PORT,
            Self::Netperf => stream::netperf::PORT,
            Self::Iperf3 => 5201,
        }
    }
}

/// Where the other end is, and how it is asked. Of files only the names are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Remote {
    /// `HOST[:PORT]`.
    pub(crate) host: String,
    #[serde(default)]
    pub(crate) protocol: Protocol,
    /// A file with the key of perpacket's protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Who this is, where a server of iperf3 wants to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// A file with the public key of that server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rsa_key: Option<PathBuf>,
}

impl Remote {
    /// Refuses what does not go together, and plans that the protocol has no words for.
    ///
    /// # Errors
    /// What that is.
    pub(crate) fn check(&self, cells: &[StreamCell]) -> Result<()> {
        ensure!(
            cells.iter().all(|cell| cell.setting.over != Over::Unix),
            "host = {}: UNIX sockets have both ends on this machine",
            self.host
        );
        ensure!(
            self.key.is_none() || self.protocol == Protocol::Own,
            "a key with {}: only perpacket's own protocol knows one; leave --key out",
            self.protocol.words()
        );
        ensure!(
            self.user.is_none() || self.protocol == Protocol::Iperf3,
            "a user with {}: only iperf3's knows one; leave --user out",
            self.protocol.words()
        );
        ensure!(
            self.user.is_some() == self.rsa_key.is_some(),
            "--user and --rsa-key go together: the name is encrypted with the server's public key"
        );
        split(&self.host, 1)?;
        cells.iter().try_for_each(|cell| self.check_plan(&cell.plan).with_context(|| cell.name.clone()))
    }

    fn check_plan(&self, plan: &Plan) -> Result<()> {
        match self.protocol {
            Protocol::Own => own::check(plan)?,
            Protocol::Netperf => netperf::check(plan)?,
            Protocol::Iperf3 => drop(stream::iperf3::plan::parameters(plan)?),
        }
        Ok(())
    }

    /// The network that leads there where nobody says which: that of the first of its addresses.
    ///
    /// # Errors
    /// The name is not known.
    pub(crate) fn over(&self) -> Result<Over> {
        let (_, addresses) = self.addresses()?;
        let first = addresses.first().with_context(|| self.no_address("an"))?;
        Ok(if first.is_ipv4() { Over::Ipv4 } else { Over::Ipv6 })
    }

    fn addresses(&self) -> Result<(String, Vec<SocketAddr>)> {
        let (name, port) = split(&self.host, self.protocol.port())?;
        let found = (name.as_str(), port).to_socket_addrs();
        let found = found.with_context(|| format!("look up the address of {name} (--host)"))?;
        Ok((name, found.collect()))
    }

    fn no_address(&self, which: &str) -> String {
        format!("--host {} has not {which} address", self.host)
    }
}

/// A name or address, and a port.
fn split(text: &str, usual: u16) -> Result<(String, u16)> {
    let wrong = || anyhow!("--host {text}: write HOST, HOST:PORT or [IPV6]:PORT");
    if text.parse::<IpAddr>().is_ok() {
        return Ok((text.to_owned(), usual));
    }
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, after) = rest.split_once(']').ok_or_else(wrong)?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(wrong)?) };
            (name, port)
        }
        None => text.rsplit_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| wrong()))?;
    ensure!(!name.is_empty() && port > 0, wrong());
    Ok((name.to_owned(), port))
}

/// A host that was found, and what opens it.
pub(crate) struct Host {
    name: String,
    to: SocketAddr,
    protocol: Protocol,
    key: Option<Key>,
    login: Option<Login>,
}

impl Host {
    /// Looks up the address, and reads keys.
    ///
    /// # Errors
    /// What is not found, or is no key.
    pub(crate) fn find(remote: &Remote, over: Over) -> Result<Self> {
        let (name, addresses) = remote.addresses()?;
        let ipv6 = over == Over::Ipv6;
        let to = addresses.into_iter().find(|to| to.is_ipv6() == ipv6);
        let to = to.with_context(|| remote.no_address(if ipv6 { "an IPv6" } else { "an IPv4" }))?;
        let key = remote.key.as_deref().map(read_key).transpose()?;
        let login = match (&remote.user, &remote.rsa_key) {
            (Some(user), Some(file)) => Some(Login {
                user: user.clone(),
                password: env::var(PASSWORD)
                    .with_context(|| format!("--user {user}: put the password into {PASSWORD}"))?,
                key: public_key(file)?,
                padding: Padding::default(),
            }),
            _ => None,
        };
        Ok(Self { name, to, protocol: remote.protocol, key, login })
    }

    /// How it was named, and its address.
    pub(crate) fn called(&self) -> (String, SocketAddr) {
        (self.name.clone(), self.to)
    }

    /// Makes one run together with it.
    ///
    /// # Errors
    /// What the protocol's client says.
    pub(crate) fn exchange(&self, asked: &Asked<'_>) -> Result<Arranged> {
        let mut arranged = match self.protocol {
            Protocol::Own => self.by_own(asked),
            Protocol::Netperf => self.by_netperf(asked),
            Protocol::Iperf3 => self.by_iperf3(asked),
        }
        .with_context(|| format!("ask {} at {} by {}", self.name, self.to, self.protocol.words()))?;
        if !asked.cpu {
            arranged.exchanged.client.cpu = None;
            arranged.exchanged.server.cpu = None;
        }
        Ok(arranged)
    }

    fn by_own(&self, asked: &Asked<'_>) -> Result<Arranged> {
        let halt = Halt::new();
        let asking = own::Asking {
            key: self.key.as_ref(),
            interval: asked.interval,
            cpu: asked.cpu,
            patience: PATIENCE,
            on_interval: Some(asked.on_interval),
            ..own::Asking::new(&halt)
        };
        let exchanged = watched(asked.stop, || halt.halt(), || own::run(self.to, asked.plan, &asking))?;
        let beside = Beside { buffers: self.buffers(asked.plan)?, ..Beside::default() };
        Ok(Arranged { exchanged, beside, ..Arranged::default() })
    }

    fn by_netperf(&self, asked: &Asked<'_>) -> Result<Arranged> {
        let control = Control::new();
        let how = netperf::How {
            cpu: asked.cpu,
            interval: asked.interval,
            on_interval: Some(asked.on_interval),
            give_up_after: PATIENCE,
            control: &control,
        };
        let run = watched(
            asked.stop,
            || control.stop(),
            || netperf::Session::connect(self.to, PATIENCE)?.run(asked.plan, &how),
        )?;
        let sizes = run.sizes;
        let beside = Beside {
            buffers: Buffers {
                local: Some((sizes.local_send_buffer, sizes.local_receive_buffer)),
                remote: Some((sizes.remote_send_buffer, sizes.remote_receive_buffer)),
            },
            message_bytes: Some(sizes.message),
            server_cpu_method: run.server_cpu_method,
            ..Beside::default()
        };
        Ok(Arranged { exchanged: run.exchanged, beside, ..Arranged::default() })
    }

    fn by_iperf3(&self, asked: &Asked<'_>) -> Result<Arranged> {
        let halt = Halt::new();
        let options = iperf3::Options {
            host: Some(&self.name),
            login: self.login.as_ref(),
            interval: asked.interval,
            patience: Some(PATIENCE),
            on_interval: Some(asked.on_interval),
            halt: Some(&halt),
            ..iperf3::Options::default()
        };
        let run = watched(asked.stop, || halt.halt(), || iperf3::run_whole(self.to, asked.plan, &options))?;
        let beside = Beside {
            buffers: self.buffers(asked.plan)?,
            facts: Some(run.facts),
            server_output: run.server_output,
            ..Beside::default()
        };
        Ok(Arranged { exchanged: run.exchanged, beside, ..Arranged::default() })
    }

    /// Those of this end; the other does not tell its own.
    fn buffers(&self, plan: &Plan) -> Result<Buffers> {
        let local = sockets::buffers(plan, &plan.options.client, self.to.is_ipv6())?;
        Ok(Buffers { local: Some(local), remote: None })
    }
}

/// A key of perpacket's own protocol, from its file.
///
/// # Errors
/// The file cannot be read, or holds none.
pub(crate) fn read_key(file: &Path) -> Result<Key> {
    let text = fs::read_to_string(file).with_context(|| format!("read the key in {}", file.display()))?;
    text.parse().with_context(|| format!("the key in {}", file.display()))
}

/// Runs something that knows nothing of signals; `end` makes it end.
fn watched<T>(stop: &Stop, end: impl Fn() + Sync, run: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Ended(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                if stop.asked() {
                    return end();
                }
                thread::sleep(LOOK);
            }
        });
        run()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_not() {
        for (text, name, port) in [
            ("192.0.2.1", "192.0.2.1", 7),
            ("192.0.2.1:80", "192.0.2.1", 80),
            ("2001:db8::1", "2001:db8::1", 7),
            ("[2001:db8::1]", "2001:db8::1", 7),
            ("[2001:db8::1]:80", "2001:db8::1", 80),
            ("a.example:80", "a.example", 80),
        ] {
            assert_eq!(split(text, 7).unwrap(), (name.to_owned(), port), "{text}");
        }
        for bad in ["", ":80", "a:", "a:x", "a:0", "a:70000", "[::1", "[::1]80", "[]:80"] {
            assert!(split(bad, 7).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_address_says_which_network() {
        let over = |host: &str| {
            let protocol = Protocol::default();
            Remote { host: host.into(), protocol, key: None, user: None, rsa_key: None }.over().unwrap()
        };
        assert_eq!((over("127.0.0.1"), over("[::1]:9")), (Over::Ipv4, Over::Ipv6));
    }
}
